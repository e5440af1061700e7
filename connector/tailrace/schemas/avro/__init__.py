"""Avro: a schema, what payloads it takes, and how they are written."""
