"""`tailrace dlq`: lists, shows, redrives and discards dead letters."""
