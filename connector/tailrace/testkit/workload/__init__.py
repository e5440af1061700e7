"""Services that write outbox events under test and record the outcome of every transaction."""
