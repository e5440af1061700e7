"""The MongoDB source: reads the documents already in the collections, then follows the change stream.

The server keeps no position for the pipeline, so nothing is confirmed to it; the oplog has a fixed size. So that an
idle outbox does not fall out of the oplog, the position follows the server's resume token when there is nothing to
publish.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from dataclasses import replace

from bson import Timestamp

from tailrace import failpoints
from tailrace.errors import CollectionGone, EventTooLarge, HistoryLost, PositionAhead, SourceError, TailraceError
from tailrace.event import Chunk
from tailrace.positions.base import Position, other_kind
from tailrace.positions.first_read import FirstRead
from tailrace.positions.mongo import ClusterTime, CollectionRead, StreamIdentity, TokenPosition
from tailrace.positions.recovery_mark import require_complete
from tailrace.sources.bounded import read_page, row_bytes
from tailrace.sources.mongo import start_where
from tailrace.sources.mongo.change_stream import ChangeStreamCursor, ChangeStreamThread
from tailrace.sources.mongo.changes import ChangeFollower, plain_token, server_token, token_time
from tailrace.sources.mongo.client import Client, ServerFacts, collection_ids, connect, identify, translated_errors
from tailrace.sources.mongo.decoding import decoded
from tailrace.sources.mongo.documents import DocumentConverter
from tailrace.sources.mongo.options import MongoOptions, Stage, can_split
from tailrace.sources.mongo.resume_check import check_resume, is_ahead
from tailrace.sources.mongo.snapshot import CollectionReader
from tailrace.wakeup import Wakeup

TOGETHER = 100
"""Changes decoded at once: enough to spread the cost of a call, few enough to be freed soon."""


class MongoSource:
    """Implements `RowSource`; owned by one thread."""

    def __init__(self, options: MongoOptions, *, wakeup: Wakeup) -> None:
        """`wakeup` ends a waiting `read` early."""
        self._options = options
        self._wakeup = wakeup
        self._documents = DocumentConverter.of(options)
        self._client: Client | None = None
        self._collection: CollectionReader | None = None
        self._stream: ChangeStreamThread | None = None
        self._changes: list[bytes] = []
        self._token: dict[str, object] | None = None
        self._ended = False
        self._failed: TailraceError | None = None
        self._poll = select.poll()
        self._poll.register(wakeup, select.POLLIN)

    def check_start(self, stored: Position | None) -> None:
        """Raises what `open` would raise for this position, without reading the stream. Changes nothing."""
        if stored is not None and not isinstance(stored, TokenPosition):
            raise other_kind(stored, "MongoDB")
        if stored is not None:
            require_complete(stored.recovery)
        options = self._options
        with connect(options.uri, app_name=f"{options.app_name} (look)", timeout=options.link_timeout) as client:
            facts = identify(client)
            self._check_start_where(client, stored)
            if stored is None or options.adopt:
                return
            unseen = dict.fromkeys(options.collections, "")
            found = facts.stream(options.watched, unseen)
            check_resume(stored, found, facts.now)
            try:
                ids = collection_ids(client, options.database, options.collections, create=False)
            except CollectionGone:
                if not options.create:
                    raise
            else:
                check_resume(stored, replace(found, collections=ids), facts.now)

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        """Starts at `stored`; a first start begins now or with existing documents. `store` writes durably at once."""
        if stored is not None and not isinstance(stored, TokenPosition):
            raise other_kind(stored, "MongoDB")
        if stored is not None:
            require_complete(stored.recovery)
        options = self._options
        self._client = connect(options.uri, app_name=options.app_name, timeout=options.link_timeout)
        facts = identify(self._client)
        self._splits = can_split(facts.version)
        self._check_start_where(self._client, stored)
        ids = collection_ids(self._client, options.database, options.collections, create=options.create)
        found = facts.stream(options.watched, ids)
        start = self._begin(stored, found, facts)
        if start != stored:
            store(start)
        self._following = ChangeFollower(start, self._documents, passing=facts.now if options.adopt else None)
        if start.collection_read is not None:
            self._leave()
            self._open_collection(start, fresh=stored is None or stored.collection_read is None)
        else:
            failpoints.reached(failpoints.STREAM_STARTED)
        return start

    def read(self, limit: int, limit_bytes: int, wait: float) -> Chunk:
        """Returns up to `limit` rows; waits at most `wait` seconds for the first of them."""
        if self._collection is not None:
            return self._read_collection(limit, limit_bytes)
        following = self._following
        rows = following.rows = []
        taken = self._take_valid(limit, limit_bytes)
        if not rows and not self._more and wait:
            self._poll.poll(wait * 1000)
            taken = self._take_valid(limit, limit_bytes)
        if rows:
            failpoints.reached(failpoints.ROWS_READ)
        return Chunk(rows, following.position, self._more, taken if rows else 0)

    @property
    def _more(self) -> bool:
        return self._failed is not None or bool(self._changes) or (self._stream is not None and self._stream.waiting)

    def _take_valid(self, limit: int, limit_bytes: int) -> int:
        """Like `_take`, but returns the rows before an error first, and raises it at the next call."""
        if self._failed is not None:
            raise self._failed
        try:
            return self._take(limit, limit_bytes)
        except TailraceError as error:
            if not self._following.rows:
                raise
            self._failed = error
            return row_bytes(self._following.rows)

    def _take(self, limit: int, limit_bytes: int) -> int:
        """Decodes the changes that have arrived; returns their bytes."""
        following, changes, taken = self._following, self._changes, 0
        while len(following.rows) < limit and taken < limit_bytes:
            if not changes:
                if not self._next_batch():
                    break
                continue
            together = changes[: min(limit - len(following.rows), TOGETHER)]
            while len(together) > 1 and taken + sum(map(len, together)) > limit_bytes:
                del together[len(together) // 2 :]
            del changes[: len(together)]
            taken += sum(map(len, together))
            following.feed_all(together)
            if not changes and self._token is not None:
                following.idle(self._token)
                self._token = None
        return taken

    def _next_batch(self) -> bool:
        if self._stream is None:
            return False
        if self._ended:
            self._reopen()
            return False
        batch = self._stream.take()
        if batch is None:
            return False
        self._changes.extend(batch.changes)
        self._ended = batch.ended
        if batch.changes:
            self._token = batch.token
        elif batch.token is not None:
            self._following.idle(batch.token)
        return True

    def settle(self) -> None:
        """Does nothing: the stream is complete up to its token."""

    def confirm(self, position: Position) -> None:
        """Does nothing: the server keeps no position for us."""

    def keep_alive(self) -> None:
        """Does nothing: the thread that fetches ahead waits, and the cursor stays open."""

    def passed(self, position: Position) -> str:
        """Returns an empty text: documents do not record their transaction."""
        return ""

    def close(self) -> None:
        self._leave()
        if self._collection is not None:
            self._collection.close()
            self._collection = None
        if self._client is not None:
            self._client.close()
            self._client = None

    def _check_start_where(self, client: Client, stored: TokenPosition | None) -> None:
        """Raises if the first read cannot be done with source.start_where, or began with another one."""
        options = self._options
        start_where.require_unchanged(stored, options)
        where = options.start_where if stored is None and options.beginning else ""
        if stored is not None and stored.collection_read is not None:
            where = stored.collection_read.where
        if where:
            start_where.require_valid(client, options.database, options.collections, where)

    def _begin(self, stored: TokenPosition | None, found: StreamIdentity, facts: ServerFacts) -> TokenPosition:
        """Returns where to start, after the stream is opened there."""
        if stored is None:
            return self._first(found, facts)
        if not self._options.adopt:
            check_resume(stored, found, facts.now)
            self._follow({"startAfter": server_token(stored.token)})
            # UUIDs that could not be read before may be readable now.
            return replace(stored, log=found) if any(found.collections.values()) else stored
        try:
            if is_ahead(stored, facts.now):
                raise PositionAhead("")
            if stored.log == found or stored.collection_read is not None:
                start: Stage = {"startAfter": server_token(stored.token)}
            else:
                # Another stream: the token may be invalid for it, but its time is not; published changes are skipped.
                start = {"startAtOperationTime": Timestamp(*stored.time.pair)}
            while True:
                try:
                    self._follow(start)
                    return replace(stored, log=found)
                except EventTooLarge:
                    stored = self._past_large(stored)
                    start = {"startAfter": server_token(stored.token)}
        except (HistoryLost, PositionAhead):
            # The changes are gone from the oplog, and the user has accepted that with --adopt.
            return replace(self._now(found, facts, {}), begun=stored.begun, first_read=stored.first_read)

    def _first(self, found: StreamIdentity, facts: ServerFacts) -> TokenPosition:
        if not self._options.beginning:
            return replace(self._now(found, facts, {}), begun=str(facts.now_ms))
        # The stream begins behind this time; documents up to it are read from the collection.
        first = ClusterTime(facts.now.seconds, facts.now.increment + 1)
        position = self._now(found, facts, {"startAtOperationTime": Timestamp(*first.pair)})
        where = self._options.start_where
        selected = FirstRead(where, at_ms=facts.now_ms) if where else None
        return replace(position, time=first, collection_read=CollectionRead(where=where), first_read=selected)

    def _now(self, found: StreamIdentity, facts: ServerFacts, start: Stage) -> TokenPosition:
        token = self._follow(start).token
        if token is None:
            raise SourceError(
                "MongoDB opened a change stream without a resume token",
                remedy="Upgrade to MongoDB 6.0 or newer.",
            )
        time_ = token_time(token) or facts.now
        return TokenPosition(found, plain_token(token), time_, facts.now_ms)

    def _follow(self, start: Stage) -> ChangeStreamThread:
        self._leave()
        self._stream = stream = ChangeStreamThread(self._cursor, start, self._wakeup)
        stream.require_resumed()
        return stream

    def _cursor(self, start: Stage, limit: int) -> ChangeStreamCursor:
        assert self._client is not None  # noqa: S101 - opened first
        watched = self._options.watched
        return ChangeStreamCursor(self._client, watched, watched.stages(start, splits=self._splits), limit=limit)

    def _past_large(self, stored: TokenPosition) -> TokenPosition:
        """Returns the position behind the change that is too large; without its document it can be read."""
        assert self._client is not None  # noqa: S101 - opened first
        watched = self._options.watched
        stages = watched.heads({"startAfter": server_token(stored.token)}, splits=self._splits)
        cursor = ChangeStreamCursor(self._client, watched, stages, limit=1)
        try:
            with translated_errors("looking for a change that is too large"):
                found = [decoded(raw) for raw in cursor.more().changes]
        finally:
            cursor.close()
        if not found:
            raise EventTooLarge(
                f"a change behind {stored} is too large, and its position cannot be found",
                remedy="Upgrade to MongoDB 6.0.9, 7.0 or newer, which send it in parts.",
            )
        stamp = found[0]["clusterTime"]
        return replace(stored, token=plain_token(found[0]["_id"]), time=ClusterTime(stamp.time, stamp.inc), ordinal=1)

    def _leave(self) -> None:
        self._ended = False
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _reopen(self) -> None:
        """Reopens a stream that the server closed after an accepted drop or rename."""
        if not self._options.adopt:
            raise CollectionGone(
                "the server has ended the stream: the watched collection is gone",
                remedy="Re-create the collection if it is still needed. If the log may have lost something, "
                "`tailrace recover plan FILE` finds what is in the collection. Otherwise start once with --adopt.",
            )
        self._follow({"startAfter": server_token(self._following.position.token)})

    def _open_collection(self, start: TokenPosition, *, fresh: bool) -> None:
        assert self._client is not None  # noqa: S101 - opened first
        self._collection = CollectionReader(
            self._client,
            self._options.watched,
            self._documents,
            order_by=self._options.order_by,
            timestamp=self._options.timestamp,
            start=start,
            fresh=fresh,
            untimed_ms=self._options.untimed_ms,
        )

    def _read_collection(self, limit: int, limit_bytes: int) -> Chunk:
        assert self._collection is not None  # noqa: S101 - checked by the caller
        page = read_page(self._collection, limit, limit_bytes)
        if page is not None:
            return page
        self._collection.close()
        self._collection = None
        self._follow({"startAfter": server_token(self._following.position.token)})
        failpoints.reached(failpoints.STREAM_STARTED)
        # Urgent: once this position is stored, a restart does not read the collection again.
        return Chunk([], self._following.position, more=False, urgent=True)
