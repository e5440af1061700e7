"""`make race`: Tailrace beside Debezium on Kafka Connect and the bare limits of each database, on the same servers."""
