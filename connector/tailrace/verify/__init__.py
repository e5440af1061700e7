"""`tailrace verify`: checks that every row of the outbox is on Kafka, exactly once, in order and unchanged."""
