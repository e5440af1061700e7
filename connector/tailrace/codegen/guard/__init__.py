"""A guard for an outbox table: SQL that refuses rows which the connector would dead-letter."""
