"""`tailrace project`: runs a worker of a projection app."""
