"""Positions in source logs: LSNs of Postgres, resume tokens of MongoDB, rows of an archive."""
