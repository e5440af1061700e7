"""How many documents retention has deleted from an outbox, by day of their creation: a collection beside the outbox."""

from __future__ import annotations

from tailrace.sources.mongo.client import connect, translated_errors
from tailrace.sources.mongo.options import MongoOptions

PURGED = "tailrace_purged"
DAY_MS = 86_400_000


def purged_documents(options: MongoOptions, within: tuple[int | None, int | None] = (None, None)) -> int:
    """Returns how many documents of these days were deleted on purpose; those without a time are included."""
    days = {sign: at_ms // DAY_MS for sign, at_ms in zip(("$gte", "$lte"), within, strict=True) if at_ms is not None}
    wanted = {"$or": [{"_id.day": days}, {"_id.day": -1}]} if days else {}
    client = connect(options.uri, app_name=f"{options.app_name} (retention)", timeout=options.link_timeout)
    try:
        with translated_errors("counting deleted documents"):
            return sum(int(each["rows"]) for each in client[options.database][PURGED].find(wanted))
    finally:
        client.close()
