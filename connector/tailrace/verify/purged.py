"""How many rows of an outbox were deleted on purpose, by retention."""

from __future__ import annotations

from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.purged_rows import purged_rows


def purged_by_retention(
    database: PostgresOptions | MongoOptions, within: tuple[int | None, int | None] = (None, None)
) -> int:
    """Counts rows that were created on the days of this time (ms)."""
    if isinstance(database, MongoOptions):
        from tailrace.sources.mongo.purged_documents import purged_documents  # optional driver

        return purged_documents(database, within)
    if database.messages is not None:
        return 0
    with database.connect() as link:
        return purged_rows(link, database.table, within)
