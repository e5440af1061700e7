"""Recovery: what a lost log no longer brings is found in the outbox itself, and published once."""
