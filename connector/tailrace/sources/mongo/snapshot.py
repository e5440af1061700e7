"""Reads the documents that were in the outbox before the stream begins, in resumable pieces.

The first session reads a snapshot of the very cluster time behind which the stream begins: nothing is in both, nothing
in neither. Servers keep such a snapshot for minutes only. A later session, after a crash or for a long collection,
reads a newer snapshot, and leaves out what was inserted between the two: the stream tells which documents those are,
and it will bring them itself. Their ids are kept in a temporary file, so memory stays flat. Documents come in the
order of an index, the nearest to commit order that a collection remembers.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace
from typing import Any

from bson import Timestamp, json_util
from bson.int64 import Int64
from bson.objectid import ObjectId
from pymongo.errors import OperationFailure

from tailrace.errors import HistoryLost, LayoutMismatch
from tailrace.event import Row
from tailrace.sources.mongo.changes import server_token, token_time
from tailrace.sources.mongo.decoding import decoded, id_of, key_of
from tailrace.sources.mongo.documents import STRICT, Document, Documents, milliseconds
from tailrace.sources.mongo.server import Client, conversation, identify
from tailrace.sources.mongo.stream import RAW, Cursor
from tailrace.sources.mongo.watched import Watched
from tailrace.token_position import ClusterTime, CollectionRead, TokenPosition

DOING = "reading the outbox collection"
SNAPSHOT_GONE = {239, 246}  # SnapshotTooOld, SnapshotUnavailable
NO_INDEX = {2, 51173, 51174}
PAGE = 1000
LEARN_MS = 200


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
        watched: Watched,
        documents: Documents,
        *,
        order_by: tuple[str, ...],
        timestamp: str | None,
        start: TokenPosition,
        fresh: bool,
    ) -> None:
        """`fresh` says that this is the session that has just taken the stream's beginning."""
        self._client = client
        self._watched = watched
        self._documents = documents
        self._order = dict.fromkeys(order_by, 1)
        self._timestamp = timestamp
        self._start = start
        self._read = start.collection_read or CollectionRead()
        self._later: Later | None = None
        self._at = before(start.time) if fresh else None
        self._cursor_id: Int64 | None = None
        self._page: list[bytes] = []
        self._session = client.start_session(causal_consistency=False)

    def read(self, limit: int, limit_bytes: int) -> tuple[list[Row], TokenPosition | None]:
        """The next rows and the position behind them; position None when everything is read."""
        rows: list[Row] = []
        size = 0
        last: Document | None = None
        while not rows:
            if not self._page and not self._turn():
                return [], None
            while self._page and len(rows) < limit and size < limit_bytes:
                raw = self._page.pop()
                last = document = decoded(raw)
                if self._later is None or id_of(raw) not in self._later:
                    rows.append(self._row(document))
                    size += sum(len(value) for value in rows[-1].values if value)
            if last is not None:
                self._read = replace(self._read, after=self._sort_key(last))
        return rows, self._position()

    def close(self) -> None:
        if self._later is not None:
            self._later.close()
        self._session.end_session()

    def _turn(self) -> bool:
        """Fetches the next page that has documents; False when there is none in any collection."""
        while self._read.collection < len(self._watched.collections):
            if self._cursor_id is None:
                self._begin()
            elif self._cursor_id:
                self._fetch()
            else:
                # The next collection begins at the same snapshot if the server still has it.
                self._cursor_id = None
                self._read = CollectionRead(self._read.collection + 1, None, self._read.documents)
            if self._page:
                return True
        return False

    def _begin(self) -> None:
        """Opens a cursor behind the last published document, at our snapshot or at a new one."""
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
        with conversation(DOING):
            try:
                cursor = self._client[self._watched.database].command(
                    command, session=self._session, codec_options=RAW
                )["cursor"]
            except OperationFailure as error:
                if error.code in SNAPSHOT_GONE:
                    self._at = self._cursor_id = None
                    return
                if error.code in NO_INDEX:
                    raise self._no_index() from None
                raise
        self._cursor_id = Int64(cursor["id"])
        # Reversed, to be taken from the end.
        self._page = [bytes(each.raw) for each in cursor[field]][::-1]

    def _new_snapshot(self) -> Timestamp:
        """A later session's: first learn what was inserted since the stream's beginning, up to a moment; read that."""
        now = identify(self._client).now
        if self._later is None:
            self._later = Later()
        start = {"startAfter": server_token(self._start.token)}
        for collection in self._watched.collections[self._read.collection :]:
            self._learn(start, collection, now)
        return Timestamp(now.seconds, now.increment)

    def _learn(self, start: Document, collection: str, until: ClusterTime) -> None:
        watched = Watched(self._watched.database, (collection,))
        stages = watched.inserted(start, collection)
        cursor = Cursor(self._client, watched, stages)
        try:
            reached = ClusterTime(0, 0)
            while reached.pair < until.pair:
                with conversation(DOING):
                    batch = cursor.more(wait_ms=LEARN_MS)
                if self._later is not None:
                    self._later.add([key_of(raw) for raw in batch.changes])
                if batch.ended:
                    raise HistoryLost(
                        "the collection was dropped or renamed while the documents before were being read",
                        remedy="Create it again if needed, write a tombstone for the pipeline's key on the offsets "
                        "topic, and start anew.",
                    )
                reached = (token_time(batch.token) if batch.token else None) or reached
        finally:
            cursor.close()

    @property
    def _collection(self) -> str:
        return self._watched.collections[self._read.collection]

    def _sort_key(self, document: Document) -> str:
        """As Extended JSON: what `min` of a later session is given. A missing field sorts as null."""
        return json_util.dumps({name: document.get(name) for name in self._order}, json_options=STRICT)

    def _row(self, document: Document) -> Row:
        self._read = replace(self._read, documents=self._read.documents + 1)
        when = milliseconds(document.get(self._timestamp)) if self._timestamp else None
        made = document.get("_id")
        if when is None and isinstance(made, ObjectId):
            when = int(made.generation_time.timestamp() * 1000)
        place = f"{self._start.time}:c{self._read.documents}"
        return self._documents.row(document, place, time.time_ns() // 1_000_000 if when is None else when)

    def _position(self) -> TokenPosition:
        return replace(self._start, collection_read=self._read)

    def _no_index(self) -> LayoutMismatch:
        keys: Any = dict(self._order)
        return LayoutMismatch(
            f"{self._watched.database}.{self._collection} has no index on {', '.join(self._order)}",
            why="Documents already there are read in the order of an index, so that reading can be resumed.",
            remedy=f"db.{self._collection}.createIndex({keys}), or set source.order_by: [_id].",
        )


def before(time_: ClusterTime) -> Timestamp:
    """The snapshot just before a stream's beginning."""
    return Timestamp(time_.seconds, time_.increment - 1)
