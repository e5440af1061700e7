"""Checks whether a new version of a schema is compatible with earlier ones."""
