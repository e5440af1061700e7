"""A read model of orders in Postgres."""
