"""Deletes outbox rows that nobody needs any more: published, and old enough, confirmed or passed by all consumers."""
