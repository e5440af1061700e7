"""`tailrace schemas`: lists, checks and registers schemas."""
