"""Deterministic simulation of the servers around the connector and the projections; see docs/simulation.md."""
