"""A collection of MongoDB whose documents are deleted after their confirmation, for `ConfirmedRetention`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pymongo.client_session import ClientSession

from tailrace.retention.confirmations import Confirmation
from tailrace.retention.confirmed import DeletedBatch
from tailrace.retention.mongo_state import MongoState
from tailrace.sources.mongo.client import connect

TIMEOUT = 60.0


class MongoConfirmedStore:
    """Implements `ConfirmedStore`. `name` separates the schedules of several collections of one database."""

    def __init__(
        self, uri: str, database: str, collection: str, *, id_field: str = "_id", name: str = "retention"
    ) -> None:
        self._client = connect(uri, app_name=f"tailrace {name} (retention)", timeout=TIMEOUT)
        self._documents: Any = self._client[database][collection]
        self._id_field = id_field
        self._state = MongoState(self._client, database, (collection,), id_field, name)
        self._state.ensure()

    def close(self) -> None:
        self._client.close()

    def offsets(self, topic: str) -> dict[int, int]:
        return self._state.offsets(topic)

    def schedule(
        self, topic: str, confirmations: Sequence[Confirmation], offsets: Mapping[int, int], *, restart: bool
    ) -> int:
        return self._state.schedule(topic, confirmations, offsets, restart=restart)

    def due(self, confirmed_ms: int, now_ms: int, limit: int) -> list[str]:
        return self._state.due(confirmed_ms, now_ms, limit)

    def delete(self, ids: Sequence[str], *, retry_ms: int, forget_ms: int) -> DeletedBatch:
        def remove(session: ClientSession) -> DeletedBatch:
            there = self._state.existing(ids, session)
            deleted = self._documents.delete_many(self._state.with_ids(there), session=session).deleted_count
            unknown = [event_id for event_id in ids if event_id not in there]
            forgotten = self._state.postpone(unknown, retry_ms, forget_ms, session)
            self._state.record(session, there, [])
            return DeletedBatch(deleted, len(unknown) - forgotten, forgotten)

        result: DeletedBatch = self._state.transaction(remove)
        return result
