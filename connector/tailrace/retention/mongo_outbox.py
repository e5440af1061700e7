"""Deletes documents of outbox collections of MongoDB, with the record of that in the same transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bson.datetime_ms import DatetimeMS
from pymongo.client_session import ClientSession

from tailrace.archive.backend import Candidate, PurgeResult
from tailrace.archive.mongo_outbox import MongoArchiveOutbox
from tailrace.positions.base import Position
from tailrace.retention.mongo_state import MongoState
from tailrace.retention.outbox import OutboxTotals
from tailrace.retention.state import by_day
from tailrace.sources.mongo.client import translated_errors
from tailrace.sources.mongo.decoding import id_of
from tailrace.sources.mongo.options import MongoOptions

AT_ONCE = 5000
"""Confirmed ids in one query."""


class MongoRetentionOutbox(MongoArchiveOutbox):
    """Implements `RetentionOutbox`."""

    PURPOSE = "retention"
    INSTEAD = "nothing was changed"

    def __init__(self, options: MongoOptions, pipeline: str, id_field: str) -> None:
        super().__init__(options, pipeline)
        self.state = MongoState(self._client, options.database, options.collections, id_field, pipeline)

    def hints(self) -> list[str]:
        return []

    def totals(self, before_ms: int | None) -> OutboxTotals:
        rows = old = 0
        with translated_errors("counting documents"):
            for name in self._options.collections:
                rows += self._collection(name).count_documents({})
                if before_ms is not None:
                    bound = {self._timestamp: {"$lt": DatetimeMS(before_ms), "$not": {"$type": "array"}}}
                    old += self._collection(name).count_documents(bound)
        return OutboxTotals(rows, 0 if before_ms is None else rows - old)

    def eligible(
        self, start: Position, before_ms: int | None, confirmed_ms: int | None = None, partition: str = ""
    ) -> Iterator[Candidate]:
        if confirmed_ms is None:
            yield from self.candidates(start, before_ms)
            return
        ids = self.state.due(confirmed_ms, confirmed_ms)
        for at in range(0, len(ids), AT_ONCE):
            yield from self.candidates(start, before_ms, self.state.with_ids(ids[at : at + AT_ONCE]))

    def delete(self, batch: Sequence[Candidate], ids: Sequence[str], start: Position) -> PurgeResult:
        known = {
            ((candidate.kept.values[-2] or b"").decode(), id_of(candidate.kept.values[-1] or b"")): (
                event_id,
                candidate,
            )
            for candidate, event_id in zip(batch, ids, strict=True)
        }

        def record(session: ClientSession, collection: str, deleted: Sequence[bytes]) -> None:
            gone = [known[collection, key] for key in deleted]
            days = by_day(candidate.kept.created_ms for _, candidate in gone)
            self.state.record(session, [event_id for event_id, _ in gone], days)

        return self.purge(self.shape.columns, [candidate.kept for candidate in batch], start, record)

    def _time_field(self) -> str:
        return self._options.timestamp or ""
