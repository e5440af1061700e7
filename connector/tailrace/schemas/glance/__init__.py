"""Knowing at a glance that a payload obeys: by how its text is spelled, without parsing it."""
