"""Reads the documents that were in the outbox before the stream begins, in resumable pieces.

The first session reads a snapshot of the very cluster time behind which the stream begins: nothing is in both, nothing
in neither. Servers keep such a snapshot for minutes only. A later session, after a crash or for a long collection,
reads a newer snapshot, and leaves out what was inserted between the two: the stream tells which documents those are,
and it will bring them itself. Their ids are kept in a temporary file, so memory stays flat. Documents come in the
order of an index, the nearest to commit order that a collection remembers.
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
from bson.objectid import ObjectId
from pymongo.errors import OperationFailure

from tailrace.errors import HistoryLost, LayoutMismatch, SourceError, StreamChanged
from tailrace.event import Row
from tailrace.positions.mongo import ClusterTime, CollectionRead, TokenPosition
from tailrace.sources.mongo.change_stream import RAW, ChangeStreamCursor
from tailrace.sources.mongo.changes import Token, server_token, token_time
from tailrace.sources.mongo.client import Client, identify, translated_errors
from tailrace.sources.mongo.decoding import decoded, id_of, key_of
from tailrace.sources.mongo.documents import STRICT, Document, Documents, milliseconds
from tailrace.sources.mongo.options import StreamSpec

DOING = "reading the outbox collection"
SNAPSHOT_GONE = {239, 246}  # SnapshotTooOld, SnapshotUnavailable
NO_INDEX = {2, 51173, 51174}
PAGE = 1000
LEARN_MS = 200

Keeps = Callable[[Row, int, int | None], bool]
"""Whether a document is wanted: its row, 0 (it has no number of a transaction), when it was created (ms)."""


class Later:
    """The ids of documents that were inserted after the stream's beginning: the stream will bring those."""

    def __init__(self) -> None:
        self._file = sqlite3.connect("", check_same_thread=False)  # an empty name: a temporary file, gone with us
        self._file.execute("CREATE TABLE later (id BLOB PRIMARY KEY) WITHOUT ROWID")

    def add(self, keys: list[bytes]) -> None:
        self._file.executemany("INSERT OR IGNORE INTO later VALUES (?)", [(key,) for key in keys])

    def __contains__(self, key: bytes) -> bool:
        return self._file.execute("SELECT 1 FROM later WHERE id = ?", (key,)).fetchone() is not None

    def close(self) -> None:
        self._file.close()


class CollectionReader:
    """Pages through the collections, one after another, from where `start` says."""

    def __init__(
        self,
        client: Client,
        watched: StreamSpec,
        documents: Documents,
        *,
        order_by: tuple[str, ...],
        timestamp: str | None,
        start: TokenPosition,
        fresh: bool,
        keeps: Keeps | None = None,
        untimed_ms: int | None = None,
    ) -> None:
        """`fresh` says that this is the session that has just taken the stream's beginning; `keeps` tells of each
        document whether it is wanted; `untimed_ms` is the time of those that have none, if not now.
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
        self._collections = self._left()
        self._later: Later | None = None
        self._learnt: dict[str, Token] = {}
        self._at = before(start.time) if fresh else None
        self._cursor_id: Int64 | None = None
        self._page: list[bytes] = []
        self._session = client.start_session(causal_consistency=False)

    def read(self, limit: int, limit_bytes: int) -> tuple[list[Row], TokenPosition | None]:
        """The next rows and the position behind them; position None when everything is read."""
        try:
            return self._next_rows(limit, limit_bytes)
        except sqlite3.Error as error:
            raise SourceError(
                f"the ids of new documents cannot be kept in a temporary file: {error}",
                remedy="See that the folder for temporary files (TMPDIR) has room, then start again.",
            ) from None

    def _next_rows(self, limit: int, limit_bytes: int) -> tuple[list[Row], TokenPosition | None]:
        """Of one page, and perhaps none of it: between two pages there are other things to look after."""
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
        """Fetches the next page that has documents; False when there is none in any collection."""
        while self._collections:
            if self._cursor_id is None:
                self._begin()
            elif self._cursor_id:
                self._fetch()
            else:
                # The next collection begins at the same snapshot if the server still has it.
                self._cursor_id = None
                del self._collections[0]
                following = self._collections[0] if self._collections else self._read.collection
                self._read = CollectionRead(following, None, self._read.documents)
            if self._page:
                return True
        return False

    def _begin(self) -> None:
        """Opens a cursor behind the last published document, at our snapshot or at a new one."""
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
        if after is not None:
            command["min"] = after
        self._ask(command, "firstBatch")
        if after is not None and self._page and self._sort_key(decoded(self._page[-1])) == self._read.after:
            self._page.pop()  # `min` includes the one that is out already

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
        # Reversed, to be taken from the end.
        self._page = [bytes(each.raw) for each in cursor[field]][::-1]

    def _new_snapshot(self) -> Timestamp:
        """A later session's: first learn what was inserted since the stream's beginning, up to a moment; read that."""
        now = identify(self._client).now
        if self._later is None:
            self._later = Later()
        for collection in self._collections:
            self._learn(collection, now, self._later)
        return Timestamp(now.seconds, now.increment)

    def _learn(self, collection: str, until: ClusterTime, later: Later) -> None:
        """Up to `until` and all of it: the last transaction may come in several answers, all of the same time."""
        watched = StreamSpec(self._watched.database, (collection,))
        # Not from the beginning each time: were that to take longer than a snapshot is kept, it would never end.
        begin = self._learnt.get(collection) or server_token(self._start.token)
        cursor = ChangeStreamCursor(self._client, watched, watched.inserted({"startAfter": begin}, collection))
        try:
            reached, came = ClusterTime(0, 0), True
            while reached.pair < until.pair or (reached.pair == until.pair and came):
                with translated_errors(DOING):
                    batch = cursor.more(wait_ms=LEARN_MS)
                later.add([key_of(raw) for raw in batch.changes])
                came = bool(batch.changes)
                if batch.ended:
                    raise HistoryLost(
                        "the collection was dropped or renamed while the documents before were being read",
                        remedy="Create it again if needed, then run `tailrace recover apply FILE`: it reads what is "
                        "there now, and publishes nothing twice.",
                    )
                if batch.token is not None:
                    self._learnt[collection] = batch.token
                    reached = token_time(batch.token) or reached
        finally:
            cursor.close()

    @property
    def _collection(self) -> str:
        return self._collections[0]

    def _left(self) -> list[str]:
        """The collections that are still to be read, the one under way first."""
        names = list(self._watched.collections)
        if self._read.collection and self._read.collection not in names:
            raise StreamChanged(
                f"{self._read.collection} was being read for the first time, and is no longer to be watched",
                remedy="Name it in source.collection again until the first read is complete.",
            )
        return names[names.index(self._read.collection) :] if self._read.collection else names

    def _sort_key(self, document: Document) -> str:
        """As Extended JSON: what `min` of a later session is given. A missing field sorts as null."""
        return json_util.dumps({name: document.get(name) for name in self._order}, json_options=STRICT)

    def _row(self, document: Document, key: bytes) -> Row | None:
        """None for one that is not wanted."""
        when = milliseconds(document.get(self._timestamp)) if self._timestamp else None
        made = document.get("_id")
        if when is None and isinstance(made, ObjectId):
            when = int(made.generation_time.timestamp() * 1000)
        # By its id, not by a count: a document that is purged meanwhile must not give its name to the next.
        place = f"{self._start.time}:{hashlib.blake2b(key, digest_size=8).hexdigest()}"
        untimed = time.time_ns() // 1_000_000 if self._untimed_ms is None else self._untimed_ms
        row = self._documents.row(document, place, untimed if when is None else when)
        return row if self._keeps is None or self._keeps(row, 0, when) else None

    def _position(self) -> TokenPosition:
        return replace(self._start, collection_read=self._read)


def before(time_: ClusterTime) -> Timestamp:
    """The snapshot just before a stream's beginning."""
    return Timestamp(time_.seconds, time_.increment - 1)


def _index_scan(plan: object) -> Document:
    """The part of a query's plan that reads an index."""
    if isinstance(plan, dict) and plan.get("stage") == "IXSCAN":
        return plan
    inner = plan.values() if isinstance(plan, dict) else plan if isinstance(plan, list) else []
    return next((scan for each in inner if (scan := _index_scan(each))), {})


def require_order(client: Client, database: str, collection: str, order_by: tuple[str, ...]) -> None:
    """Raises what keeps a collection from being read in this order.

    An index that lacks documents, or has some twice, would make the reading lack or repeat them.
    """
    if order_by == ("_id",):
        return
    order = dict.fromkeys(order_by, 1)
    question = {"find": collection, "sort": order, "hint": order}
    with translated_errors(DOING):
        try:
            plan = client[database].command({"explain": question, "verbosity": "queryPlanner"})
        except OperationFailure as error:
            if error.code in NO_INDEX:
                raise _no_index(database, collection, order_by) from None
            raise
    chosen = plan.get("queryPlanner", {})
    if chosen.get("winningPlan", {}).get("stage") == "EOF":
        # There is no such collection yet. When it is created, it has no index either.
        raise _no_index(database, collection, order_by)
    scan = _index_scan(chosen)
    kinds = {"isPartial": "partial", "isSparse": "sparse", "isMultiKey": "over arrays", "collation": "collated"}
    flaws = [word for name, word in kinds.items() if scan.get(name)]
    if flaws:
        raise LayoutMismatch(
            f"the index on {', '.join(order_by)} of {database}.{collection} is {' and '.join(flaws)}",
            why="Documents already there are read in its order: it must have each of them once, in plain order.",
            remedy="Name fields in source.order_by that have a plain index, or leave it out to read by _id.",
        )


def _no_index(database: str, collection: str, order_by: tuple[str, ...]) -> LayoutMismatch:
    keys: Any = dict.fromkeys(order_by, 1)
    return LayoutMismatch(
        f"{database}.{collection} has no index on {', '.join(order_by)}",
        why="Documents already there are read in the order of an index, so that reading can be resumed.",
        remedy=f"db.{collection}.createIndex({keys}), or set source.order_by: [_id].",
    )
