"""A read model of users in MongoDB."""
