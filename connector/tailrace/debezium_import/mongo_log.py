"""MongoDB's change stream from the cluster time of Debezium's offset.

A token of Debezium's stream may be unusable for another stream, but its time is not: reading begins with all changes of
that time, and those up to the token are known to be published.
"""

from __future__ import annotations

from collections.abc import Iterator

from bson import Timestamp

from tailrace.debezium_import.offset import MongoOffset
from tailrace.debezium_import.outbox_log import LogRow
from tailrace.errors import DebeziumOffsetUnfit, PositionAhead
from tailrace.positions.mongo import ClusterTime, TokenPosition
from tailrace.sources.mongo.changes import ChangeFollower, plain_token
from tailrace.sources.mongo.client import collection_ids, connect, identify
from tailrace.sources.mongo.options import MongoOptions, can_split
from tailrace.sources.mongo.source import MongoSource
from tailrace.wakeup import Wakeup

READ_BYTES = 8 << 20
WAIT_SECONDS = 1.0
TRANSACTION_MS = 60_000
"""How long a transaction may take (transactionLifetimeLimitSeconds): its documents may be that old at its commit."""


class MongoOutboxLog(MongoSource):
    """Implements `OutboxLog`."""

    def __init__(self, options: MongoOptions, offset: MongoOffset, wakeup: Wakeup) -> None:
        super().__init__(options, wakeup=wakeup)
        self._offset = offset
        self._client = client = connect(options.uri, app_name=options.app_name, timeout=options.link_timeout)
        try:
            self.start = self._begin_at(offset)
        except BaseException:
            self.close()
            raise
        facts = identify(client)
        self._end, self._now_ms = facts.now, facts.now_ms

    def rows(self) -> Iterator[LogRow]:
        reached: tuple[int, int] = (0, 0)
        while reached < self._end.pair:
            chunk = self.read(1, READ_BYTES, WAIT_SECONDS)
            position = chunk.position
            assert isinstance(position, TokenPosition)  # noqa: S101 - of this source
            for row in chunk.rows:
                covered = self._offset.covers(self._changes_read.last_token)
                yield LogRow(row, position, covered, row.committed_ms)
            if not chunk.rows:
                reached = position.time.pair

    def begun(self, pending: int | None) -> str:
        """The time before which documents of committed transactions were created, without those that are pending."""
        oldest = self._now_ms if pending is None else min(pending, self._now_ms)
        return str(oldest - TRANSACTION_MS)

    def extend(self) -> None:
        assert self._client is not None  # noqa: S101 - until it is closed
        self._end = identify(self._client).now

    def _begin_at(self, offset: MongoOffset) -> TokenPosition:
        assert self._client is not None  # noqa: S101 - the caller has opened it
        options, facts = self._options, identify(self._client)
        self._splits = can_split(facts.version)
        if offset.time.pair > facts.now.pair:
            raise PositionAhead(
                f"Debezium's offset {offset} is beyond the end of the server's log, {facts.now}",
                why="The server was restored from a backup, or the settings name another one.",
                remedy="Check source.mongo and --offsets. Nothing was changed.",
            )
        ids = collection_ids(self._client, options.database, options.collections, create=False)
        stream = self._follow({"startAtOperationTime": Timestamp(*offset.time.pair)})
        if stream.token is None:
            raise DebeziumOffsetUnfit(
                "MongoDB opened a change stream without a resume token", remedy="Upgrade to MongoDB 6.0 or newer."
            )
        start = TokenPosition(
            facts.stream(options.watched, ids),
            plain_token(stream.token),
            ClusterTime(*offset.time.pair),
            offset.time.seconds * 1000,
        )
        self._following = self._changes_read = _Follower(start, self._documents)
        return start


class _Follower(ChangeFollower):
    """Notes the token of the last change; behind a batch the position has that of the whole batch."""

    last_token = ""

    def feed_all(self, raw: list[bytes]) -> None:
        super().feed_all(raw)
        self.last_token = str(self.position.token["_data"])
