"""The Postgres store of projections."""
