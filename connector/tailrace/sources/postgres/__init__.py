"""The Postgres source: rows already in the table, then logical replication."""
