"""Postgres logical replication: the pure decoders and the conversation around them."""
