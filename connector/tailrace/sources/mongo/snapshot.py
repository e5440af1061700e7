"""Reads the documents that were in the outbox before the stream begins, in resumable pages.

The first session reads a snapshot at the cluster time at which the stream begins, so every document is either in the
snapshot or in the stream. Servers keep a snapshot only for minutes. A later session, after a crash or for a long
collection, reads a newer snapshot, and leaves out the documents inserted in between: a second stream lists their ids,
and the main stream sends them later. The ids are kept in a temporary file, so memory stays flat. Documents are read in
the order of an index.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bson import Timestamp, json_util
from bson.int64 import Int64
from pymongo.errors import OperationFailure

from tailrace.errors import HistoryLost, LayoutMismatch, SourceError, StreamChanged
from tailrace.event import Row
from tailrace.positions.first_read import FirstRead
from tailrace.positions.mongo import ClusterTime, CollectionRead, TokenPosition
from tailrace.sources.mongo.change_stream import RAW, ChangeStreamCursor
from tailrace.sources.mongo.changes import Token, server_token
from tailrace.sources.mongo.client import Client, identify, translated_errors
from tailrace.sources.mongo.decoding import decoded, id_of, key_of
from tailrace.sources.mongo.documents import STRICT, Document, DocumentConverter, created_ms
from tailrace.sources.mongo.options import StreamSpec
from tailrace.sources.mongo.start_where import left_out_filter, parsed
from tailrace.temporary_table import DiskSet

DOING = "reading the outbox collection"
SNAPSHOT_GONE = {239, 246}  # SnapshotTooOld, SnapshotUnavailable
NO_INDEX = {2, 51173, 51174}
PAGE = 1000
LEARN_MS = 200

Keeps = Callable[[Row, int, int | None], bool]
"""Decides whether a document is wanted, from its row, 0 (no transaction id), and its creation time (ms)."""


class CollectionReader:
    """Pages through the collections one after another, beginning at `start`."""

    def __init__(
        self,
        client: Client,
        watched: StreamSpec,
        documents: DocumentConverter,
        *,
        order_by: tuple[str, ...],
        timestamp: str | None,
        start: TokenPosition,
        fresh: bool,
        keeps: Keeps | None = None,
        untimed_ms: int | None = None,
        left_out: FirstRead | None = None,
    ) -> None:
        """`fresh`: this session has just opened the stream, so its snapshot is still available; `keeps` decides for
        each document whether it is wanted; `untimed_ms` is the time of documents without one, instead of now;
        `left_out`: leave out what the first read has left out.
        """
        self._untimed_ms = untimed_ms
        self._client = client
        self._watched = watched
        self._documents = documents
        self._order = dict.fromkeys(order_by, 1)
        self._timestamp = timestamp
        self._start = start
        self._keeps = keeps
        self._read = start.collection_read or CollectionRead()
        self._selected = parsed(self._read.where)
        if left_out is not None:
            self._selected = {"$nor": [left_out_filter(left_out, timestamp)]}
        self._collections = self._left()
        self._later: DiskSet | None = None
        """The ids of documents that were inserted after the start of the stream, which will send them."""
        self._learnt: dict[str, Token] = {}
        self._at = before(start.time) if fresh else None
        self._cursor_id: Int64 | None = None
        self._page: list[bytes] = []
        self._session = client.start_session(causal_consistency=False)

    def read(self, limit: int, limit_bytes: int) -> tuple[list[Row], TokenPosition | None]:
        """Returns the next rows and the position behind them; the position is None when everything is read.

        The rows are of one page, perhaps none; between two pages the loop does other work.
        """
        rows: list[Row] = []
        size = 0
        last: Document | None = None
        if not self._page and not self._turn():
            return [], None
        while self._page and len(rows) < limit and size < limit_bytes:
            raw = self._page.pop()
            last, key = decoded(raw), id_of(raw)
            row = None if self._later is not None and key in self._later else self._row(last, key)
            if row is not None:
                self._read = replace(self._read, documents=self._read.documents + 1)
                rows.append(row)
                size += sum(len(value) for value in row.values if value)
        if last is not None:
            self._read = replace(self._read, after=self._sort_key(last))
        return rows, self._position()

    def close(self) -> None:
        if self._later is not None:
            self._later.close()
        self._session.end_session()

    def _turn(self) -> bool:
        """Fetches the next page that has documents; returns False when all collections are read."""
        while self._collections:
            if self._cursor_id is None:
                self._begin()
            elif self._cursor_id:
                self._fetch()
            else:
                # The next collection is read at the same snapshot, if the server still has it.
                self._cursor_id = None
                del self._collections[0]
                following = self._collections[0] if self._collections else self._read.collection
                self._read = replace(self._read, collection=following, after=None)
            if self._page:
                return True
        return False

    def _begin(self) -> None:
        """Opens a cursor behind the last published document, at the current or a new snapshot."""
        self._read = replace(self._read, collection=self._collection)
        require_order(self._client, self._watched.database, self._collection, tuple(self._order))
        if self._at is None:
            self._at = self._new_snapshot()
        after = None if self._read.after is None else json_util.loads(self._read.after, json_options=STRICT)
        command: Document = {
            "find": self._collection,
            "sort": self._order,
            "hint": self._order,
            "batchSize": PAGE,
            "readConcern": {"level": "snapshot", "atClusterTime": self._at},
        }
        if self._selected:
            command["filter"] = self._selected
        if after is not None:
            command["min"] = after
        self._ask(command, "firstBatch")
        if after is not None and self._page and self._sort_key(decoded(self._page[-1])) == self._read.after:
            self._page.pop()  # `min` includes the last published document

    def _fetch(self) -> None:
        self._ask({"getMore": self._cursor_id, "collection": self._collection, "batchSize": PAGE}, "nextBatch")

    def _ask(self, command: Document, field: str) -> None:
        with translated_errors(DOING):
            try:
                cursor = self._client[self._watched.database].command(
                    command, session=self._session, codec_options=RAW
                )["cursor"]
            except OperationFailure as error:
                if error.code in SNAPSHOT_GONE:
                    self._at = self._cursor_id = None
                    return
                if error.code in NO_INDEX:
                    raise _no_index(self._watched.database, self._collection, tuple(self._order)) from None
                raise
        self._cursor_id = Int64(cursor["id"])
        # Reversed, because `pop` takes from the end.
        self._page = [bytes(each.raw) for each in cursor[field]][::-1]

    def _new_snapshot(self) -> Timestamp:
        """Returns a newer snapshot, after collecting the ids of documents inserted before it."""
        now = identify(self._client).now
        if self._later is None:
            self._later = DiskSet(_no_room)
        for collection in self._collections:
            self._learn(collection, now, self._later)
        return Timestamp(now.seconds, now.increment)

    def _learn(self, collection: str, until: ClusterTime, later: DiskSet) -> None:
        """Collects the ids up to and including `until`."""
        watched = StreamSpec(self._watched.database, (collection,))
        # Not from the start each time: if that took longer than a snapshot is kept, it would never end.
        begin = self._learnt.get(collection) or server_token(self._start.token)
        cursor = ChangeStreamCursor(self._client, watched, watched.inserted({"startAfter": begin}, collection))
        try:
            for batch in cursor.until(until, DOING, wait_ms=LEARN_MS):
                later.add(key_of(raw) for raw in batch.changes)
                if batch.ended:
                    raise HistoryLost(
                        "the collection was dropped or renamed while its existing documents were being read",
                        remedy="Re-create it if needed, then run `tailrace recover apply FILE`: it reads what is "
                        "there now, and publishes nothing twice.",
                    )
                if batch.token is not None:
                    self._learnt[collection] = batch.token
        finally:
            cursor.close()

    @property
    def _collection(self) -> str:
        return self._collections[0]

    def _left(self) -> list[str]:
        """Returns the collections that are not completely read, the current one first."""
        names = list(self._watched.collections)
        if self._read.collection and self._read.collection not in names:
            raise StreamChanged(
                f"{self._read.collection} is not completely read for the first time, and no longer in the settings",
                remedy="Name it in source.collection again until the first read is complete.",
            )
        return names[names.index(self._read.collection) :] if self._read.collection else names

    def _sort_key(self, document: Document) -> str:
        """Returns the sort key as Extended JSON, for `min` of a later session. A missing field sorts as null."""
        return json_util.dumps({name: document.get(name) for name in self._order}, json_options=STRICT)

    def _row(self, document: Document, key: bytes) -> Row | None:
        """Returns the row; None if it is not wanted."""
        when = created_ms(document, self._timestamp)
        # By its id, not by a count: deleting a document must not change the positions of others.
        position = f"{self._start.time}:{hashlib.blake2b(key, digest_size=8).hexdigest()}"
        untimed = time.time_ns() // 1_000_000 if self._untimed_ms is None else self._untimed_ms
        row = self._documents.row(document, position, untimed if when is None else when)
        return row if self._keeps is None or self._keeps(row, 0, when) else None

    def _position(self) -> TokenPosition:
        return replace(self._start, collection_read=self._read)


def before(time_: ClusterTime) -> Timestamp:
    """Returns the snapshot time just before the start of a stream."""
    return Timestamp(time_.seconds, time_.increment - 1)


def _index_scan(plan: object) -> Document:
    """Returns the index scan of a query plan."""
    if isinstance(plan, dict) and plan.get("stage") == "IXSCAN":
        return plan
    inner = plan.values() if isinstance(plan, dict) else plan if isinstance(plan, list) else []
    return next((scan for each in inner if (scan := _index_scan(each))), {})


def require_order(client: Client, database: str, collection: str, order_by: tuple[str, ...]) -> None:
    """Raises if a collection cannot be read in this order.

    An index that lacks documents or has some twice would miss or repeat them.
    """
    if order_by == ("_id",):
        return
    order = dict.fromkeys(order_by, 1)
    query = {"find": collection, "sort": order, "hint": order}
    with translated_errors(DOING):
        try:
            plan = client[database].command({"explain": query, "verbosity": "queryPlanner"})
        except OperationFailure as error:
            if error.code in NO_INDEX:
                raise _no_index(database, collection, order_by) from None
            raise
    chosen = plan.get("queryPlanner", {})
    if chosen.get("winningPlan", {}).get("stage") == "EOF":
        # The collection does not exist yet; when it is created, it has no index.
        raise _no_index(database, collection, order_by)
    scan = _index_scan(chosen)
    kinds = {"isPartial": "partial", "isSparse": "sparse", "isMultiKey": "over arrays", "collation": "collated"}
    flaws = [word for name, word in kinds.items() if scan.get(name)]
    if flaws:
        raise LayoutMismatch(
            f"the index on {', '.join(order_by)} of {database}.{collection} is {' and '.join(flaws)}",
            why="Existing documents are read in its order: it must have each of them once, in plain order.",
            remedy="Name fields in source.order_by that have a plain index, or leave it out to read by _id.",
        )


def _no_room(error: sqlite3.Error) -> SourceError:
    return SourceError(
        f"the ids of new documents cannot be written to a temporary file: {error}",
        remedy="Free space in the folder for temporary files (TMPDIR), then start again.",
    )


def _no_index(database: str, collection: str, order_by: tuple[str, ...]) -> LayoutMismatch:
    keys: Any = dict.fromkeys(order_by, 1)
    return LayoutMismatch(
        f"{database}.{collection} has no index on {', '.join(order_by)}",
        why="Existing documents are read in the order of an index, so that reading can be resumed.",
        remedy=f"db.{collection}.createIndex({keys}), or set source.order_by: [_id].",
    )
