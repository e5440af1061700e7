"""The state that a pipeline stores in Kafka: offsets, position history, ownership, status, rewind marker."""
