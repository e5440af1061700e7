"""Projections as users write them. `python -m examples.run order_summary` runs one on real servers and checks it."""
