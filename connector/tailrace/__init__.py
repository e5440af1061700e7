"""Tailrace: outbox tables to Kafka, exactly once and in order."""

__version__ = "0.1.0"
