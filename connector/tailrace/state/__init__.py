"""What a pipeline stores in Kafka about itself: offsets, position history, ownership, status, rewind marker."""
