"""Avro: compiles schemas, validates payloads and writes them."""
