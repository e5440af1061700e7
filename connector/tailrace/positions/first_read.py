"""The record of a first read that `source.start_where` limited: part of every later position of the pipeline.

`verify`, `recover`, `archive` and replays use it to distinguish rows that the first read left out from missing rows.
"""

from __future__ import annotations

from dataclasses import dataclass

LEFT_OUT, UNCERTAIN = 1, 2
"""Stand for the transaction of a row that the first read has left out, or perhaps has. No row has transaction 1; only
rows from before Postgres 9.4 have 2.
"""


@dataclass(frozen=True, slots=True)
class FirstRead:
    """Rows that were in the outbox at that moment, and for which `where` is false, were not published.

    `where` is the SQL predicate, or the MongoDB filter as JSON. `snapshot` is the Postgres snapshot of the slot; empty
    with MongoDB, and if transaction ids say nothing any more (the database was restored). `at_ms` is the server's
    clock; 0 if it is unknown.
    """

    where: str
    snapshot: str = ""
    at_ms: int = 0
