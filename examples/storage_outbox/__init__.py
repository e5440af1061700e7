"""Contents of stores, from an outbox with sequence numbers and metadata."""
