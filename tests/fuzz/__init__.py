"""Mutated bytes for everything that meets outside bytes; see docs/simulation.md."""
