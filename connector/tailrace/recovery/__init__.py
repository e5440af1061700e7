"""Recovery after the log was lost: finds unpublished events in the outbox, and publishes them once."""
