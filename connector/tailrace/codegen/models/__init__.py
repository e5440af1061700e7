"""Pydantic models of the registered schemas, as Python source: what editors and type checkers know events by."""
