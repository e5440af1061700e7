"""Delivery marks: the columns that say whether an outbox row was published, and the SQL that keeps them up to date."""
