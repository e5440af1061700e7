"""Kafka Connect's REST API: a pipeline is a connector with one task."""
