"""Kafka Connect's REST API for the pipelines of a worker."""
