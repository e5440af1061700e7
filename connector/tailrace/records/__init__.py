"""What stands on Kafka: an event, where it goes and what it was checked against, as the bytes of a record."""
