"""Outbox rows beyond the table: files that hold them, a list of the files, and both read again."""
