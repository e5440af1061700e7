"""The history of one event: its row, its records on Kafka, its dead letters, and the projections that applied it."""
