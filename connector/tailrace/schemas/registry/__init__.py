"""A Confluent-compatible schema registry: asking it, keeping what it said, registering a folder."""
