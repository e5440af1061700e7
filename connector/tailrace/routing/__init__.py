"""OutboxEvent -> topic and record; topic specs as users declare them."""
