"""Recovery of a MongoDB pipeline whose log was lost.

A cluster time is chosen. What was committed up to it is read from the collections, in a snapshot of that time, and what
is already on Kafka is left out; later changes come from the change stream. If it is killed, it starts again, and what
it had published is found on Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bson import Timestamp
from pymongo.errors import PyMongoError

from tailrace import failpoints
from tailrace.errors import CollectionGone, TailraceError
from tailrace.positions.base import Position, other_kind
from tailrace.positions.mongo import ClusterTime, CollectionRead, TokenPosition
from tailrace.positions.recovery_mark import Recovery, require_complete
from tailrace.recovery.backend import RECOVERABLE, STAYS, AcceptRow, Begin
from tailrace.recovery.evidence import Evidence, begun_before, by_time, first_read_before
from tailrace.recovery.oplog_gap import require_read
from tailrace.sources.bounded import BoundedSource
from tailrace.sources.mongo.change_stream import DOING, ChangeStreamCursor
from tailrace.sources.mongo.changes import plain_token, server_token
from tailrace.sources.mongo.client import Client, collection_ids, connect, identify, translate
from tailrace.sources.mongo.documents import DocumentConverter
from tailrace.sources.mongo.options import MongoOptions, Stage, can_split
from tailrace.sources.mongo.resume_check import check_resume, is_ahead
from tailrace.sources.mongo.snapshot import CollectionReader, require_order
from tailrace.state.position_history import PositionEntry
from tailrace.wakeup import Wakeup

LOOK_MS = 1


class MongoBackend:
    """Implements `Backend`."""

    def __init__(self, options: MongoOptions) -> None:
        self._options = options
        # Another name, so that it is not counted as a connector.
        self._client = connect(options.uri, app_name=f"{options.app_name} (recover)", timeout=options.link_timeout)
        self._facts = identify(self._client)
        self._unread = ""

    def find_error(self, stored: Position | None, until: Position | None) -> TailraceError | None:
        if stored is None:
            return None
        if not isinstance(stored, TokenPosition):
            raise other_kind(stored, "MongoDB")
        options, facts = self._options, self._facts
        try:
            require_complete(stored.recovery)
            ids = collection_ids(self._client, options.database, options.collections, create=False)
            found = facts.stream(options.watched, ids)
            check_resume(stored, found, facts.now)
            self._probe_resume(stored)
        except RECOVERABLE as error:
            return error
        return None

    def is_elsewhere(self, stored: Position) -> bool:
        if not isinstance(stored, TokenPosition):
            return True
        here = self._facts.replica_set, self._options.database
        return (stored.log.replica_set, stored.log.database) != here

    def went_back(self, lost: Position | None) -> bool:
        """Also if a collection was re-created, because its ids may be assigned again."""
        if not isinstance(lost, TokenPosition):
            return False
        return is_ahead(lost, self._facts.now) or self._is_recreated(lost)

    def lost_notes(self, lost: Position | None) -> list[str]:
        fields = [self._unread] if self._unread else []
        if isinstance(lost, TokenPosition) and is_ahead(lost, self._facts.now):
            return [*fields, f"the server's log ends at {self._facts.now}, before the last position: {STAYS}"]
        return [*fields, f"a collection is not the one that was read: {STAYS}"] if self.went_back(lost) else fields

    def has_time_zone(self) -> bool:
        return True

    def steps(self, lost: Position | None) -> list[str]:
        options = self._options
        if isinstance(lost, TokenPosition) and lost.collection_read is None and not self.is_elsewhere(lost):
            self._unread = require_read(self._client, lost, self._facts.now)
        try:
            collection_ids(self._client, options.database, options.collections, create=False)
        except CollectionGone:
            if not options.create:
                raise
            created = ["create the collections that are missing"]
        else:
            created = []
        for name in options.collections:
            require_order(self._client, options.database, name, options.order_by)
        return [*created, "take a new position in the log"]

    def readable(self) -> MongoOptions | None:
        there = tuple(name for name in self._options.collections if self._id_of(name) is not None)
        return replace(self._options, collections=there) if there else None

    def evaluate(
        self, entries: Sequence[PositionEntry], lost: Position | None, until_ms: int | None, *, went_back: bool
    ) -> Evidence:
        """Uses times only, because documents do not store their transaction."""
        return by_time(entries, until_ms)

    def source(self, mark: Recovery, accept: AcceptRow, wakeup: Wakeup, begin: Begin, *, resume: bool) -> MongoRecovery:
        return MongoRecovery(self._options, mark, accept, wakeup, begin, resume=resume)

    def close(self) -> None:
        self._client.close()

    def _is_recreated(self, lost: TokenPosition) -> bool:
        return any(was and self._id_of(name) not in (None, "", was) for name, was in lost.log.collections.items())

    def _id_of(self, name: str) -> str | None:
        """Returns None if the collection does not exist, and an empty string if it may not be read."""
        try:
            return collection_ids(self._client, self._options.database, (name,), create=False)[name]
        except CollectionGone:
            return None

    def _probe_resume(self, stored: TokenPosition) -> None:
        """Raises the error with which the server refuses to resume; it comes with the first batch."""
        start = {"startAfter": server_token(stored.token)}
        cursor = stream_at(self._client, self._options, start, splits=can_split(self._facts.version))
        try:
            cursor.more(wait_ms=LOOK_MS)
        except PyMongoError as error:
            raise translate(error, DOING) from None
        finally:
            cursor.close()


class MongoRecovery(BoundedSource):
    """Reads the collections, and ends at the position where the stream continues."""

    def __init__(
        self, options: MongoOptions, mark: Recovery, accept: AcceptRow, wakeup: Wakeup, begin: Begin, *, resume: bool
    ) -> None:
        super().__init__(wakeup)
        self._options = options
        self._mark = mark
        self._accept = accept
        self._begin = begin
        self._resume = resume
        self._client: Client | None = None

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        self._begin(stored)
        options = self._options
        self._client = client = connect(options.uri, app_name=options.app_name, timeout=options.link_timeout)
        again = self._resume and isinstance(stored, TokenPosition) and stored.collection_read is not None
        start = stored if again and isinstance(stored, TokenPosition) else self._first(client)
        if not again:
            store(start)
            failpoints.reached(failpoints.SLOT_CREATED)
        self._end = replace(start, collection_read=None, recovery=None)
        self._reader = CollectionReader(
            client,
            options.watched,
            DocumentConverter.of(options),
            order_by=options.order_by,
            timestamp=options.timestamp,
            start=start,
            fresh=not again,
            keeps=self._accept,
            left_out=start.first_read,
        )
        return start

    def close(self) -> None:
        super().close()
        if self._client is not None:
            self._client.close()
            self._client = None

    def _first(self, client: Client) -> TokenPosition:
        """Returns the starting position: the stream continues behind it, the collections are read up to it."""
        options, facts = self._options, identify(client)
        ids = collection_ids(client, options.database, options.collections, create=options.create)
        found = facts.stream(options.watched, ids)
        # Creating a collection advances the clock.
        facts = identify(client)
        first = ClusterTime(facts.now.seconds, facts.now.increment + 1)
        start = {"startAtOperationTime": Timestamp(*first.pair)}
        cursor = stream_at(client, options, start, splits=can_split(facts.version))
        cursor.close()
        return TokenPosition(
            found,
            plain_token(cursor.first_token),
            first,
            facts.now_ms,
            collection_read=CollectionRead(),
            recovery=self._mark,
            begun=begun_before(self._mark),
            first_read=first_read_before(self._mark, options),
        )


def stream_at(client: Client, options: MongoOptions, start: Stage, *, splits: bool) -> ChangeStreamCursor:
    return ChangeStreamCursor(client, options.watched, options.watched.stages(start, splits=splits), limit=1)
