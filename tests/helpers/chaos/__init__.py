"""Chaos: random faults of the fault matrix over pipelines and projections of both databases at once (`make chaos`)."""
