"""`tailrace replay`: publishes events again from the log, the table or the archive, once and marked as replayed."""
