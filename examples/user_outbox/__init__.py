"""A users service on MongoDB that writes its events with the outbox writer."""
