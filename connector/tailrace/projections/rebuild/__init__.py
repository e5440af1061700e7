"""Rebuilding and resetting projections."""
