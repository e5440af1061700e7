"""Projections that are stored in Postgres."""
