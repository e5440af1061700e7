"""The commands of `tailrace outbox`."""
