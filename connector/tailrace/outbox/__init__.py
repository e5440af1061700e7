"""What an outbox row means: table layouts, and the SQL that makes such a table."""
