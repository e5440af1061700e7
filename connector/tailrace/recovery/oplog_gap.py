"""Finds documents in MongoDB's log that a recovery would miss, because their collection was dropped or renamed.

A recovery reads collections. Documents inserted behind the last position into a collection that was then dropped or
renamed are only in the log, as long as it reaches back to that position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.errors import HistoryLost, RecoveryUncertain
from tailrace.positions.mongo import ClusterTime, TokenPosition
from tailrace.sources.mongo.change_stream import ChangeStreamCursor, RawBatch, read_until
from tailrace.sources.mongo.changes import server_token
from tailrace.sources.mongo.client import Client, translated_errors
from tailrace.sources.mongo.decoding import decoded
from tailrace.sources.mongo.documents import Document
from tailrace.sources.mongo.options import StreamSpec

LOOK_MS = 200
HEADS = {"$project": {"operationType": 1, "ns.coll": 1, "to.coll": 1}}
"""Leaves out the documents, because one that is too large to be sent would hide the others."""


@dataclass(slots=True)
class OplogGap:
    """Counts inserts whose collection has ended since (`left`). Pure.

    `gone`: the log has lost the rest, and these documents with it.
    """

    pending: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    gone: bool = False

    def feed(self, change: Document) -> None:
        name, kind = str(change.get("ns", {}).get("coll", "")), change["operationType"]
        if kind == "insert":
            self.pending[name] += 1
        elif kind in ("drop", "rename"):
            # A collection that is renamed over another one ends that one as well.
            for ended in {name, str(change.get("to", {}).get("coll", ""))}:
                self.left[ended] += self.pending.pop(ended, 0)
        else:
            self.left.update(self.pending)
            self.pending.clear()


def require_read(client: Client, lost: TokenPosition, now: ClusterTime) -> str:
    """Refuses a recovery while the log has unpublished documents that are in no collection.

    Returns a note about documents that are lost in the log as well; empty if there are none.
    """
    return check_gap(_unread(client, lost, now), lost.log.database)


def check_gap(unread: OplogGap, database: str) -> str:
    found = +unread.left
    if not found:
        return ""
    names = ", ".join(f"{database}.{name}" for name in sorted(found))
    what = f"{found.total():,} documents were inserted into {names} behind the last position, before it was dropped"
    if unread.gone:
        return f"{what} or renamed; the log has rolled over since: they were not published, and cannot be"
    raise RecoveryUncertain(
        f"{what} or renamed",
        why="They were not published. A recovery reads collections, which no longer have them; the log still has them.",
        remedy="Instead of `recover`, start once with --adopt: it publishes them from the log, and what was inserted "
        "since then.",
    )


def _unread(client: Client, lost: TokenPosition, now: ClusterTime) -> OplogGap:
    watched = StreamSpec(lost.log.database, tuple(lost.log.collections))
    stages = [{"$changeStream": {"startAfter": server_token(lost.token)}}, watched.filter, HEADS]
    try:
        cursor = ChangeStreamCursor(client, watched, stages)
    except HistoryLost:
        return OplogGap()

    def more() -> RawBatch:
        with translated_errors("looking for what the log still holds"):
            return cursor.more(wait_ms=LOOK_MS)

    try:
        return counted(more, now)
    finally:
        cursor.close()


def counted(more: Callable[[], RawBatch], now: ClusterTime) -> OplogGap:
    """Counts the inserts up to `now`."""
    unread = OplogGap()
    try:
        for batch in read_until(more, now):
            for raw in batch.changes:
                unread.feed(decoded(raw))
            if batch.ended:
                break
    except HistoryLost:
        # The log is lost, so only the collections are left.
        unread.gone = True
    return unread
