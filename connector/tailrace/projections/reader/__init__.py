"""Reads the topics of projections and safe agents: one confluent-kafka consumer, which no other code touches."""
