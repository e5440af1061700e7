"""Contracts: the schemas a user registers, and the check of every payload against its own."""
