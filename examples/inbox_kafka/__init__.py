"""Order totals with a plain confluent-kafka consumer and the inbox."""
