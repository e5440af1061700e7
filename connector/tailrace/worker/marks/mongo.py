"""Stores row marks in MongoDB: fields of the outbox documents, and two small collections beside them.

A mark is an update, and the change stream has only inserts: marks publish nothing. Marks are idempotent, so they need
no transaction: `tailrace_marks` says last up to which cluster time all documents are marked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tailrace import failpoints
from tailrace.dlq.undelivered import WAITING, Undelivered
from tailrace.errors import AccessRefused, HistoryLost, MarksRefused
from tailrace.outbox.marks.columns import Assignments, MarkColumns, Value
from tailrace.outbox.mongosh import STATE, UNDELIVERED
from tailrace.positions.base import Position
from tailrace.positions.first_read import FirstRead
from tailrace.positions.mongo import ClusterTime, TokenPosition
from tailrace.sources.mongo import marks
from tailrace.sources.mongo.client import Client, connect, identify
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.mongo.start_where import left_out_filter
from tailrace.worker.marks.store import Changes, Probe

PAGE = 1000


class MongoMarks:
    """Implements `MarkStore` for row marks."""

    has_watermark = False

    def __init__(self, options: MongoOptions, pipeline: str, columns: MarkColumns, id_field: str) -> None:
        self._options = options
        self._pipeline = pipeline
        self._columns = columns
        self._id_field = id_field
        self._client: Client | None = None
        self._since: ClusterTime | None = None
        self._begun_ms = 0
        self._first_read: FirstRead | None = None

    def open(self, began: Position) -> bool:
        self.close()
        options = self._options
        self._client = connect(options.uri, app_name=f"{options.app_name} (marks)", timeout=options.link_timeout)
        assert isinstance(began, TokenPosition)  # noqa: S101 - of the same kind as the options
        state = self._guarded(lambda: self._collection(STATE).find_one({"_id": self._pipeline})) or {}
        marked = state.get("marked")
        self._begun_ms = int(began.begun or state.get("begun") or 0)
        self._first_read = began.first_read
        if marked is not None:
            self._since = ClusterTime(marked[0], marked[1])
            return tuple(marked) >= (*began.time.pair, began.ordinal)
        if self._begun_ms and began.at_ms <= self._begun_ms:
            self._since = began.time  # the position of the first start
        else:
            # The exact time of the first start is not known any more, only its second.
            self._since = ClusterTime(self._begun_ms // 1000, 0) if self._begun_ms else None
        return False

    def end_of(self, position: Position) -> tuple[int, ...]:
        assert isinstance(position, TokenPosition)  # noqa: S101 - of the same kind as the options
        return position.time.pair

    def probe(self) -> Probe:
        now = identify(self._linked).now
        # This write makes the time pass, so that the position of an idle outbox gets beyond it.
        self._save_state({"$set": {"probed": str(now), "begun": self._begun_ms}})
        return Probe(str(now), (now.seconds, now.increment + 1))

    def fell_behind(self) -> None:
        """Does nothing: a probe shows everything that was published before it."""

    def store_baseline(self, position: Position) -> None:
        self.open(position)
        assert isinstance(position, TokenPosition)  # noqa: S101 - of the same kind as the options
        self._save_position([*position.time.pair, position.ordinal])

    def retry_unseen(self) -> None:
        """Does nothing: a document of the change stream is there."""

    def write(self, changes: Changes, position: Position | None, passed: Probe | None) -> None:
        ids = changes.published
        for at in range(0, len(ids), PAGE):
            self._mark(ids[at : at + PAGE])
        self.save_undelivered(changes.undelivered)
        if changes.released:
            self._remove({"_id.event_id": {"$in": changes.released}})
        if changes.redriven:
            self.remove_redriven(changes.redriven)
        failpoints.reached(failpoints.MARKS_WRITTEN)
        if isinstance(position, TokenPosition):
            self._save_position([*position.time.pair, position.ordinal])
        failpoints.reached(failpoints.MARKS_COMMITTED)

    def catch_up(self, passed: Probe, going: Callable[[], bool], pace: Callable[[float], None]) -> bool:
        until = ClusterTime.parse(passed.seen)
        try:
            pages = self._in_collections(until) if self._since is None else self._in_oplog(self._since, until)
            complete = self._mark_all(pages, going, pace)
        except HistoryLost:
            complete = self._mark_all(self._in_collections(until), going, pace)
        if complete:
            self._save_position([*until.pair, 0])
        return complete

    def _in_oplog(self, since: ClusterTime, until: ClusterTime) -> Iterator[list[marks.Found]]:
        return marks.inserted(self._linked, self._options.watched, since, until, self._id_field)

    def _in_collections(self, at: ClusterTime) -> Iterator[list[marks.Found]]:
        options, wanted = self._options, self._pending()
        if self._first_read is not None:
            wanted = {"$and": [wanted, {"$nor": [left_out_filter(self._first_read, options.timestamp)]}]}
        for collection in options.collections:
            pages = marks.unmarked(self._linked, options.database, collection, at, wanted, self._id_field)
            for page in pages:
                yield [
                    found
                    for found, document in page
                    if not marks.created_before(document, options.timestamp, self._begun_ms)
                ]

    def _mark_all(
        self, pages: Iterator[list[marks.Found]], going: Callable[[], bool], pace: Callable[[float], None]
    ) -> bool:
        for page in pages:
            began = time.monotonic()
            for at in range(0, len(page), PAGE):
                self._mark_found(page[at : at + PAGE])
                failpoints.reached(failpoints.MARKS_CATCHING_UP)
            pace(time.monotonic() - began)
            if not going():
                return False
        return True

    def _mark_found(self, page: Sequence[marks.Found]) -> None:
        """Marks documents by their `_id`, except undelivered ones."""
        names = [found.event_id for found in page]
        query = {"_id.pipeline": self._pipeline, "_id.event_id": {"$in": names}}
        undelivered = self._guarded(
            lambda: {each["_id"]["event_id"] for each in self._collection(UNDELIVERED).find(query)}
        )
        for collection in self._options.collections:
            keys = [each.key for each in page if each.collection == collection and each.event_id not in undelivered]
            if keys:
                self._update([collection], [({"_id": {"$in": keys}, **self._pending()}, self._published())])

    def save_undelivered(self, undelivered: Sequence[Undelivered]) -> None:
        if not undelivered:
            return
        with _named():
            marks.save(
                self._linked,
                self._options.database,
                UNDELIVERED,
                [
                    {
                        "_id": {"pipeline": self._pipeline, "event_id": each.event_id},
                        "position": each.position,
                        "reason": each.reason,
                        "error": each.error,
                    }
                    for each in undelivered
                ],
            )
        updates = []
        for each in undelivered:
            if each.reason == WAITING:
                continue
            error = f"{each.reason}: {each.error}"
            wanted = {self._id_field: {"$in": marks.values_of(each.event_id)}, **self._pending()}
            if self._columns.failed != self._columns.waiting:
                wanted[self._columns.status] = {"$nin": [self._columns.done, self._columns.failed]}
            updates.append((wanted, _assigned(self._columns.dead_lettered, error)))
        if updates:
            self._update(self._options.collections, updates)

    def keep_waiting(self, event_ids: Sequence[str]) -> None:
        self._republished({"reason": WAITING, "_id.event_id": {"$nin": list(event_ids)}})

    def remove_redriven(self, positions: Sequence[str]) -> None:
        self._republished({"position": {"$in": list(positions)}})

    def _republished(self, wanted: dict[str, Any]) -> None:
        """Marks undelivered events as published, then forgets them."""
        query = {"_id.pipeline": self._pipeline, **wanted}
        ids = self._guarded(lambda: [each["_id"]["event_id"] for each in self._collection(UNDELIVERED).find(query)])
        if ids:
            self._mark(ids)
            self._remove({"_id.event_id": {"$in": ids}})

    def has_undelivered(self) -> bool:
        query = {"_id.pipeline": self._pipeline}
        return self._guarded(lambda: self._collection(UNDELIVERED).find_one(query)) is not None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _mark(self, event_ids: Sequence[str]) -> None:
        values = [value for each in event_ids for value in marks.values_of(each)]
        wanted = {self._id_field: {"$in": values}, **self._pending()}
        self._update(self._options.collections, [(wanted, self._published())])

    def _pending(self) -> dict[str, Any]:
        return {self._columns.status: {"$ne": self._columns.done}}

    def _published(self) -> list[dict[str, Any]]:
        return _assigned(self._columns.published, "")

    def _update(self, collections: Sequence[str], updates: Sequence[tuple[dict[str, Any], Any]]) -> None:
        with _named():
            marks.update(self._linked, self._options.database, collections, updates)

    def _remove(self, wanted: dict[str, Any]) -> None:
        query = {"_id.pipeline": self._pipeline, **wanted}
        self._guarded(lambda: self._collection(UNDELIVERED).delete_many(query))

    def _save_position(self, marked: list[int]) -> None:
        # An older instance that is about to end must not set it back.
        self._save_state({"$max": {"marked": marked}, "$currentDate": {"at": True}})
        self._since = ClusterTime(marked[0], marked[1])

    def _save_state(self, update: dict[str, Any]) -> None:
        self._guarded(lambda: self._collection(STATE).update_one({"_id": self._pipeline}, update, upsert=True))

    def _collection(self, name: str) -> Any:  # noqa: ANN401 - a collection of the driver
        return self._linked[self._options.database][name]

    def _guarded(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the call returns
        with _named():
            return marks.guarded(call)

    @property
    def _linked(self) -> Client:
        assert self._client is not None  # noqa: S101 - `open` comes first
        return self._client


def _assigned(assignments: Assignments, error: str) -> list[dict[str, Any]]:
    """Returns the update as an aggregation, which can refer to the current values."""

    def written(field: str, value: Value | str | bool) -> object:
        if isinstance(value, str | bool):
            return {"$literal": value}
        if value is Value.FIRST:
            return {"$ifNull": [f"${field}", "$$NOW"]}
        if value is Value.PLUS_ONE:
            return {"$add": [{"$ifNull": [f"${field}", 0]}, 1]}
        return {Value.NOW: "$$NOW", Value.NOTHING: None, Value.ERROR: {"$literal": error}}[value]

    return [{"$set": {field: written(field, value) for field, value in assignments.items()}}]


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except AccessRefused as error:
        raise MarksRefused(
            error.what,
            why=f"{error.why} Events are published all the same.",
            remedy=f"The user needs `update` on the outbox collections, and `find`, `insert`, `update` and `remove` on "
            f"{STATE} and {UNDELIVERED} in the same database; or set marks: none.",
        ) from None
