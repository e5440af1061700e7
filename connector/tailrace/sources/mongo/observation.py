"""Observes a MongoDB source while a pipeline reads it: the changes after its position, the oplog, and the outbox.

It has its own client with short timeouts. Nothing here changes anything.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import bson
import pymongo

from tailrace.errors import AccessRefused, HistoryLost, TailraceError
from tailrace.positions.base import Position
from tailrace.positions.mongo import TokenPosition
from tailrace.sources.mongo.change_stream import ChangeStreamCursor
from tailrace.sources.mongo.changes import server_token
from tailrace.sources.mongo.client import Client, connect, identify, translated_errors
from tailrace.sources.mongo.options import MongoOptions, can_split
from tailrace.sources.observation import COUNTED, SourceObservation

TIMEOUT = 5.0
COUNT_SECONDS = 2.0
"""How long pending events are counted."""
QUICK_SECONDS, COUNT_FACTOR = 1.0, 20.0
"""After a count that took longer, the next one waits this many times as long as it took."""
WAIT_MS = 50
"""Not with the driver's own timeout, which would replace it."""
OPLOG = "oplog.rs"
FULL_SHARE = 0.9
"""Old entries are dropped in blocks, so that the oplog is never exactly full."""
LONG_MICROSECONDS = 5_000_000
"""A request for changes that takes longer than this makes the server work: it would answer an idle one sooner."""


class MongoObserver:
    """Keeps one client; after an error, the next call makes another."""

    def __init__(self, options: MongoOptions) -> None:
        self._options = options
        self._client: Client | None = None
        self._counted: tuple[int, float | None] = (0, None)
        self._count_at = 0.0

    def observe(self, position: Position | None) -> SourceObservation:
        """Reads the state of the source; raises if the server does not answer."""
        try:
            return self._observe(position)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _observe(self, position: Position | None) -> SourceObservation:
        if self._client is None:
            timeout = min(self._options.link_timeout, TIMEOUT)
            self._client = connect(self._options.uri, app_name=f"{self._options.app_name} (observer)", timeout=timeout)
        client = self._client
        with pymongo.timeout(TIMEOUT):
            facts = identify(client)
        stored = position if isinstance(position, TokenPosition) else None
        pending, first, lost = None, None, ""
        if stored is not None and stored.collection_read is None:
            try:
                pending, first = self._counted_pending(client, stored, splits=can_split(facts.version))
            except HistoryLost as error:
                lost = error.what
        now = facts.now_ms / 1000
        with pymongo.timeout(TIMEOUT):
            log, busy, size = self._oplog(client, stored), self._is_busy(client), self._size(client)
        return SourceObservation(
            now_ms=facts.now_ms,
            behind=bool(pending),
            busy=busy,
            lag_seconds=None if pending is None else max(0.0, now - first) if first is not None else 0.0,
            pending=pending,
            table_bytes=size,
            lost=lost,
            reading_existing=stored is not None and stored.collection_read is not None,
            limit_bytes=log.limit,
            growth=log.growth,
            log_end=log.end,
            retained_bytes=log.retained,
            safe_bytes=log.safe,
        )

    def _counted_pending(self, client: Client, stored: TokenPosition, *, splits: bool) -> tuple[int, float | None]:
        """Counts pending events, or returns the last count if that took long: the server has to read the oplog."""
        began = time.monotonic()
        if began >= self._count_at:
            self._counted = self._pending(client, stored, splits=splits)
            took = time.monotonic() - began
            self._count_at = began + (COUNT_FACTOR * took if took > QUICK_SECONDS else 0.0)
        return self._counted

    def _pending(self, client: Client, stored: TokenPosition, *, splits: bool) -> tuple[int, float | None]:
        """Counts the changes after the position, and returns the time of the first as a Unix time."""
        watched = self._options.watched
        deadline, count = time.monotonic() + COUNT_SECONDS, 0
        first: float | None = None
        with translated_errors("counting pending events"):
            stages = watched.heads({"startAfter": server_token(stored.token)}, splits=splits)
            cursor = ChangeStreamCursor(client, watched, stages)
            try:
                while count < COUNTED and time.monotonic() < deadline:
                    batch = cursor.more(wait_ms=WAIT_MS)
                    if batch.changes and first is None:
                        first = float(bson.decode(batch.changes[0])["clusterTime"].time)
                    count += len(batch.changes)
                    if not batch.changes or batch.ended:
                        break
            finally:
                cursor.close()
        return min(count, COUNTED), first

    def _is_busy(self, client: Client) -> bool:
        """Whether the server has worked on a request of the reader for long; False if that may not be read."""
        stage = {"$currentOp": {"allUsers": False}}
        wanted = {
            "$match": {
                "appName": self._options.app_name,
                "command.getMore": {"$exists": True},
                "microsecs_running": {"$gt": LONG_MICROSECONDS},
            }
        }
        try:
            with translated_errors("looking for the reader's requests"):
                found = client.admin.command({"aggregate": 1, "pipeline": [stage, wanted], "cursor": {}})
        except TailraceError:
            return False
        return bool(found["cursor"]["firstBatch"])

    def _size(self, client: Client) -> int | None:
        total = 0
        try:
            with translated_errors("reading the size of the outbox"):
                for name in self._options.collections:
                    stats = client[self._options.database].command({"collStats": name})
                    total += int(stats.get("storageSize", 0)) + int(stats.get("totalIndexSize", 0))
        except TailraceError:
            return None
        return total

    def _oplog(self, client: Client, stored: TokenPosition | None) -> OplogFigures:
        """Returns what is known about the oplog; nothing if the user may not read it."""
        found = read_oplog(client)
        if found is None or not found.limit:
            return OplogFigures()
        return oplog_figures(*found, None if stored is None else stored.time.seconds)


class OplogFigures(NamedTuple):
    """How the oplog is used, in bytes; see SourceObservation. None if it is not known."""

    limit: int | None = None
    growth: float | None = None
    end: int | None = None
    retained: int | None = None
    safe: int | None = None


def oplog_figures(first: int, last: int, size: int, limit: int, position: int | None) -> OplogFigures:
    """Estimates the figures from the times of the first and the last entry, and of the position. Pure.

    Entries are taken to be spread evenly over the time that the oplog covers.
    """
    covered = max(1, last - first)
    full = size >= FULL_SHARE * limit
    figures = OplogFigures(limit, size / covered if full else None, None if full else size)
    if position is None:
        return figures
    behind = min(max(0, last - position), covered) / covered
    before = 0.0 if position < first else 1 - behind
    return figures._replace(retained=int(size * behind), safe=int(size * before) + max(0, limit - size))


class OplogExtent(NamedTuple):
    """The times of the first and the last entry of the oplog, in seconds, its size and its limit in bytes."""

    first: int
    last: int
    size: int
    limit: int


def read_oplog(client: Client) -> OplogExtent | None:
    """Returns the extent of the oplog; None if it is empty or the user may not read it."""
    ends: list[int] = []
    try:
        with translated_errors("looking at the oplog"):
            for order in (1, -1):
                question = {"find": OPLOG, "sort": {"$natural": order}, "limit": 1, "projection": {"ts": 1}}
                found = client.local.command({**question, "singleBatch": True})["cursor"]["firstBatch"]
                ends += [entry["ts"].time for entry in found]
            stats = client.local.command({"collStats": OPLOG})
    except AccessRefused:
        return None
    if len(ends) < 2:
        return None
    return OplogExtent(ends[0], ends[1], int(stats.get("size", 0)), int(stats.get("maxSize", 0)))
