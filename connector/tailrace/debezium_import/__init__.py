"""Takes over from Debezium: its configuration, its offset, and a comparison beside it before that."""
