"""Generates an AsyncAPI 3 document of a pipeline's topics."""
