"""Adapters for the drivers that services use. A driver is only touched if the service has imported it."""
