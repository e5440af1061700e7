"""MongoDB's log: the oplog, as far back as the server keeps it. A replay can start at any cluster time in it.

The server converts a time to a token, and reports at once whether its log reaches back that far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bson import Timestamp

from tailrace.check.health_mongo import observer, read_log
from tailrace.errors import ConfigError, HistoryLost
from tailrace.positions.base import Position, other_kind
from tailrace.positions.mongo import HASH_DIGITS, ClusterTime, TokenPosition
from tailrace.replay.points import Moment, Oldest, Point, Token
from tailrace.replay.source_log import format_time, not_a_point, out_of_reach
from tailrace.sources.mongo.change_stream import ChangeStreamCursor
from tailrace.sources.mongo.changes import plain_token, server_token, token_time
from tailrace.sources.mongo.client import collection_ids, identify, translated_errors
from tailrace.sources.mongo.options import MongoOptions, Stage, can_split
from tailrace.sources.mongo.resume_check import check_resume
from tailrace.state.position_history import PositionEntry

FORMS = "a time, a cluster time such as `1773403200.7`, a resume token, `event:ID`, or `oldest`"
GLANCE_MS = 100


class MongoLog:
    """Implements `SourceLog`."""

    def __init__(self, options: MongoOptions, stored: Position, entries: Sequence[PositionEntry]) -> None:
        """`entries` are not needed, because the server knows times itself."""
        if not isinstance(stored, TokenPosition):
            raise other_kind(stored, "MongoDB")
        self._stored = stored
        self._options = options
        self._client = observer(options)
        facts = identify(self._client)
        ids = collection_ids(self._client, options.database, options.collections, create=False)
        self._log = facts.stream(options.watched, ids)
        check_resume(stored, self._log, facts.now)
        self._now = facts.now
        self._splits = can_split(facts.version)
        self._first = read_log(self._client)

    @property
    def oldest(self) -> TokenPosition | None:
        """One second behind the first entry, which the server may delete at any moment."""
        if self._first is None:
            return None
        return self._at_time(ClusterTime(self._first.first + 1, 1))

    def at(self, point: Point) -> Position:
        match point:
            case Oldest():
                oldest = self.oldest
                if oldest is None:
                    raise ConfigError(
                        "it is not known how far back the oplog reaches: this user may not read it",
                        remedy=f"Grant read on the database `local`, or write {FORMS}.",
                    )
                return oldest
            case ClusterTime():
                return self._at_time(point)
            case Moment(at_ms):
                # Increments begin at 1, so this is before everything in that second. The clock of an idle server stands
                # still; a later time means right behind its last operation.
                idle = ClusterTime(self._now.seconds, self._now.increment + 1)
                return self._at_time(min(ClusterTime(at_ms // 1000, 1), idle, key=lambda time: time.pair))
            case Token(data):
                token = {"_data": data}
                time = token_time(token)
                if time is None:
                    raise not_a_point(str(point), FORMS)
                # A token alone does not identify a change within its transaction, so the whole transaction is replayed.
                return self._at_time(time)
        raise not_a_point(str(point), FORMS)

    def at_event_position(self, position: str) -> Position:
        """Returns the position right before the transaction of a document."""
        time, _, number = position.partition(":")
        if len(number) == HASH_DIGITS:
            out_of_reach(f"the event at {position} was in the collection before the stream began",
                         "It was never in the log.", self._nearest())  # fmt: skip
        return self._at_time(ClusterTime.parse(time))

    def validated(self, position: Position) -> TokenPosition:
        if not isinstance(position, TokenPosition):
            raise not_a_point(str(position), FORMS)
        check_resume(position, self._log, self._now)
        self._open({"startAfter": server_token(position.token)}, str(position), position.time)
        return replace(position, log=self._log, begun=self._stored.begun, first_read=self._stored.first_read)

    def _at_time(self, time: ClusterTime) -> TokenPosition:
        if time.pair > (self._now.seconds, self._now.increment + 1):
            raise ConfigError(
                f"the cluster time {time} is in the future: the server's is {self._now}",
                remedy="Give a point in the past.",
            )
        token = self._open({"startAtOperationTime": Timestamp(*time.pair)}, f"the cluster time {time}", time)
        stored = self._stored
        return TokenPosition(
            self._log, token, time, time.seconds * 1000, begun=stored.begun, first_read=stored.first_read
        )

    def _open(self, start: Stage, what: str, time: ClusterTime) -> dict[str, object]:
        """Asks the server whether it can start there, and returns the token of that position."""
        watched = self._options.watched
        try:
            cursor = ChangeStreamCursor(self._client, watched, watched.heads(start, splits=self._splits))
            try:
                with translated_errors("looking back into the oplog"):
                    cursor.more(wait_ms=GLANCE_MS)
            finally:
                cursor.close()
        except HistoryLost:
            out_of_reach(f"the oplog no longer reaches back to {what}, {format_time(time.seconds * 1000)}",
                         "The server has deleted that part of its log.", self._nearest())  # fmt: skip
        return plain_token(cursor.first_token)

    def _nearest(self) -> list[str]:
        first = self._first
        if first is None:
            return ["unknown: this user may not read the oplog"]
        return [f"`oldest`, {ClusterTime(first.first + 1, 1)} ({format_time((first.first + 1) * 1000)})"]

    def close(self) -> None:
        self._client.close()
