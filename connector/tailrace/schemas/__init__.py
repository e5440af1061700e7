"""Compiled schemas, and the validation of payloads against them."""
