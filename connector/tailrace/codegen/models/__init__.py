"""Generates pydantic models of the registered schemas, as Python source for editors and type checkers."""
