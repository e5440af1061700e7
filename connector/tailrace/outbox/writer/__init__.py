"""The writer for services: adds events to an outbox inside the service's own transaction, with its own driver."""
