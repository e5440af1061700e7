"""Builds Kafka records from events."""
