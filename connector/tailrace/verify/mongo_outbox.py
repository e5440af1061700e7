"""Reads outbox collections of MongoDB, and finds the documents that still lie ahead of a pipeline.

Every document that was read is committed before the cluster time that is read afterwards, so a stored position beyond
that time has passed them all. For a pipeline that has not reached it, the change stream from its stored position on
shows which documents are still to come; it has passed all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pymongo.read_concern import ReadConcern

from tailrace.errors import CollectionGone, EventTooLarge, HistoryLost, StreamChanged
from tailrace.event import Row
from tailrace.positions.base import Position, is_streaming
from tailrace.positions.first_read import LEFT_OUT, UNCERTAIN, FirstRead
from tailrace.positions.mongo import ClusterTime, TokenPosition
from tailrace.sources.mongo.change_stream import ChangeStreamCursor
from tailrace.sources.mongo.changes import ChangeFollower, server_token
from tailrace.sources.mongo.client import collection_ids, connect, identify, translated_errors
from tailrace.sources.mongo.decoding import concatenated, decoded
from tailrace.sources.mongo.documents import Document, DocumentConverter, created_ms
from tailrace.sources.mongo.options import MongoOptions, can_split
from tailrace.sources.mongo.start_where import left_out_filter, uncertain_filter
from tailrace.verify.backend import OutboxRow, Window, everywhere, is_left_out, no_start, nowhere
from tailrace.verify.findings import UNKNOWN

BATCH = 2000
WAIT_MS = 200


class MongoOutboxReader:
    def __init__(self, options: MongoOptions, window: Window, first_read: FirstRead | None = None) -> None:
        """`first_read`: mark the documents that it has left out (LEFT_OUT, UNCERTAIN as their transaction)."""
        self._first_read = first_read
        self._options = options
        self._window = window
        # Another name, so that it is not counted as a connector.
        self._client = connect(options.uri, app_name=f"{options.app_name} (verify)", timeout=options.link_timeout)
        self._documents = DocumentConverter.of(options)
        self._end = ClusterTime(0, 0)

    def rows(self) -> Iterator[OutboxRow]:
        options = self._options
        facts = identify(self._client)
        self._splits = can_split(facts.version)
        collection_ids(self._client, options.database, options.collections, create=False)
        for name in options.collections:
            for transaction, wanted in self._parts():
                yield from self._collection(name, transaction, wanted)
        self._end = identify(self._client).now

    def is_passed(self, stored: Position) -> bool:
        # At exactly that time the position may be inside a transaction; `beyond` finds the rest of it.
        return isinstance(stored, TokenPosition) and is_streaming(stored) and stored.time.pair >= self._end.pair

    def beyond(self, stored: Position, ahead: Callable[[Row], None]) -> Callable[[int], bool]:
        if not isinstance(stored, TokenPosition) or not is_streaming(stored):
            return nowhere
        try:
            self._follow(stored, ahead)
        except (HistoryLost, StreamChanged, CollectionGone, EventTooLarge):
            # The stream cannot be read, so the pipeline cannot continue either; `tailrace status` says why.
            return nowhere
        return everywhere

    def before_start(self, stored: Position) -> Callable[[int, int], bool]:
        """Compares with the document's own time, since MongoDB does not store when it was committed."""
        if self._first_read is not None:
            return is_left_out
        if not isinstance(stored, TokenPosition) or not stored.begun:
            return no_start
        return partial(_was_there, int(stored.begun))

    def close(self) -> None:
        self._client.close()

    def _parts(self) -> list[tuple[int, Document]]:
        """Returns the filters whose documents are read one after another, and the transaction that they get.

        What was left out comes first: a document that is marked as processed meanwhile is then missed, and not read
        twice.
        """
        within, first = self._filter(), self._first_read
        if first is None:
            return [(0, within)]
        timestamp = self._options.timestamp
        marked: list[tuple[int, Document]] = [(UNCERTAIN, uncertain_filter(first, timestamp))]
        if first.at_ms:
            marked.insert(0, (LEFT_OUT, left_out_filter(first, timestamp)))
        rest: Document = {"$nor": [each for _, each in marked]}
        return [(transaction, {"$and": [each, within]}) for transaction, each in [*marked, (0, rest)]]

    def _collection(self, name: str, transaction: int, wanted: Document) -> Iterator[OutboxRow]:
        database = self._client.get_database(self._options.database, read_concern=ReadConcern("majority"))
        with translated_errors("reading the outbox collection"):
            batches: Any = database[name].find_raw_batches(wanted, batch_size=BATCH)  # typed as documents
            for batch in batches:
                for raw in concatenated(batch):
                    yield self._row(decoded(raw), transaction)

    def _row(self, document: Document, transaction: int) -> OutboxRow:
        when = created_ms(document, self._options.timestamp)
        row = self._documents.row(document, "", when or 0)
        return OutboxRow(row, transaction, UNKNOWN if when is None else when)

    def _filter(self) -> dict[str, Any]:
        since, until = (None if bound is None else _date(bound) for bound in self._window)
        bounds = {name: bound for name, bound in (("$gte", since), ("$lt", until)) if bound is not None}
        return {self._options.timestamp: bounds} if bounds and self._options.timestamp else {}

    def _follow(self, start: TokenPosition, ahead: Callable[[Row], None]) -> None:
        """Passes the rows from `start` up to the end to `ahead`."""
        watched = self._options.watched
        stages = watched.stages({"startAfter": server_token(start.token)}, splits=self._splits)
        cursor = ChangeStreamCursor(self._client, watched, stages)
        changes = ChangeFollower(start, self._documents)
        doing = "following the change stream behind the stored position"
        try:
            for batch in cursor.until(self._end, doing, wait_ms=WAIT_MS, reached=start.time):
                for change in batch.changes:
                    changes.feed(change)
                for row in changes.rows:
                    ahead(row)
                changes.rows.clear()
                if batch.ended:
                    raise HistoryLost("the server has ended the stream")
        finally:
            cursor.close()


def _was_there(begun_ms: int, transaction: int, created_ms: int) -> bool:
    return created_ms != UNKNOWN and created_ms < begun_ms


def _date(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
