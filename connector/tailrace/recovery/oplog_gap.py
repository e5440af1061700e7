"""What MongoDB's log still holds of a collection that has ended: the one thing that a recovery would pass over.

A recovery reads collections. Documents that were inserted behind the last position into one that was then dropped or
renamed are in none of them any more; as long as the log reaches back to the position, they are in the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.errors import HistoryLost, RecoveryUncertain
from tailrace.positions.mongo import ClusterTime, TokenPosition
from tailrace.sources.mongo.change_stream import ChangeStreamCursor, RawBatch
from tailrace.sources.mongo.changes import server_token, token_time
from tailrace.sources.mongo.client import Client, translated_errors
from tailrace.sources.mongo.decoding import decoded
from tailrace.sources.mongo.documents import Document
from tailrace.sources.mongo.stream_spec import StreamSpec

LOOK_MS = 200
HEADS = {"$project": {"operationType": 1, "ns.coll": 1, "to.coll": 1}}
"""Without the documents: one that is too large to be sent must not keep the others from being seen."""


@dataclass(slots=True)
class OplogGap:
    """Counts inserts until their collection ends; pure. `left` are those that no collection has any more.

    `gone`: the log itself has lost the rest, and these with it.
    """

    pending: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    gone: bool = False

    def feed(self, change: Document) -> None:
        name, kind = str(change.get("ns", {}).get("coll", "")), change["operationType"]
        if kind == "insert":
            self.pending[name] += 1
        elif kind in ("drop", "rename"):
            # What takes the name of another collection ends that one, too.
            for ended in {name, str(change.get("to", {}).get("coll", ""))}:
                self.left[ended] += self.pending.pop(ended, 0)
        else:
            self.left.update(self.pending)
            self.pending.clear()


def require_read(client: Client, lost: TokenPosition, now: ClusterTime) -> str:
    """Refuses a recovery while the log has documents that were never published and that no collection has.

    What is known of those that the log does not have any more either, for people; "" if nothing is.
    """
    return judged(_unread(client, lost, now), lost.log.database)


def judged(unread: OplogGap, database: str) -> str:
    """See `require_read`."""
    found = +unread.left
    if not found:
        return ""
    names = ", ".join(f"{database}.{name}" for name in sorted(found))
    what = f"{found.total():,} documents were inserted into {names} behind the last position, before it was dropped"
    if unread.gone:
        return f"{what} or renamed; the log has rolled over since: they were not published, and cannot be"
    raise RecoveryUncertain(
        f"{what} or renamed",
        why="They were not published, and a recovery reads collections, which no longer have them. The log has.",
        remedy="Instead of `recover`, start once with --adopt: it publishes them from the log, and what was inserted "
        "since.",
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
    """Up to `now`, and all of that: a transaction may come in several answers, all of the same time.

    No further: while the outbox is written to, there is always more.
    """
    unread = OplogGap()
    reached, came = ClusterTime(0, 0), True
    while reached.pair < now.pair or (reached.pair == now.pair and came):
        try:
            batch = more()
        except HistoryLost:
            # Nothing can be had from it: what the collections hold is all there is.
            unread.gone = True
            break
        for raw in batch.changes:
            unread.feed(decoded(raw))
        came = bool(batch.changes)
        if batch.ended:
            break
        if batch.token is not None:
            reached = token_time(batch.token) or reached
    return unread
