"""`tailrace replay`: events published again, from the log or from the table, each once and marked as such."""
