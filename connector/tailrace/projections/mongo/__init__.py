"""Projections that are stored in MongoDB."""
