"""What the ledger is worth after a log was lost: which entry is still true, and from where topics must be read. Pure.

An entry's snapshot shows rows that the pipeline had passed. It holds for the log in which it was taken: after a restore
or a failover the numbers of transactions are given out again from where the old log was left, so an entry from behind
that point would call new rows old ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tailrace.positions.base import Position, from_stored
from tailrace.positions.mongo import TokenPosition
from tailrace.positions.postgres import LsnPosition
from tailrace.positions.recovery_mark import Recovery
from tailrace.recovery.rules import LONG_MS, SKEW_MS
from tailrace.sources.postgres.resume_check import ServerIdentity
from tailrace.sources.postgres.snapshot import Snapshot
from tailrace.state.position_history import Offsets, PositionEntry, offsets_at

MARGIN_MS = 600_000
"""Topics are read from where they ended so long before the first event that matters can have been published: an entry's
offsets are asked for a moment after its position, and a batch may have been on its way for minutes.
"""
_WRAP = 1 << 32


@dataclass(frozen=True, slots=True)
class Evidence:
    """`passed`: rows of transactions before this number (32 bits) were passed; None if nothing is known so.

    All others that were published are behind `offsets` if they were created at `from_ms` or later.
    """

    passed: int | None = None
    entry: PositionEntry | None = None
    offsets: Offsets = field(default_factory=dict)
    from_ms: int = 0


def streams(position: Position | None) -> bool:
    """Whether it is a place in the log, and not one before it."""
    if isinstance(position, LsnPosition):
        return not (position.creating or position.table_read or position.recovery)
    return isinstance(position, TokenPosition) and not (position.collection_read or position.recovery)


def begun_before(mark: Recovery) -> str:
    """What is known of the pipeline's first start. Nothing if the database was set back, perhaps to before it."""
    lost = from_stored(mark.lost) if mark.lost and not mark.went_back else None
    return lost.begun if isinstance(lost, LsnPosition | TokenPosition) else ""


def is_true(
    position: LsnPosition, lost: LsnPosition | None, server: ServerIdentity, left: dict[int, int], *, went_back: bool
) -> bool:
    """Whether what lay before `position` lies before it in the server's log as it is now.

    `left` tells where the server's log left its earlier timelines.
    """
    log = position.log
    if (log.system_id, log.database) != (server.system_id, server.database):
        return False
    if lost is not None and lost.history != position.history:
        return False
    if lost is not None and lost.log.timeline == log.timeline and position.lsn > lost.lsn:
        return False
    if log.timeline == server.timeline:
        # A log that was set back has been written anew from some point on, and nobody knows which.
        return not (went_back and lost is not None and lost.log.timeline == server.timeline)
    return position.lsn <= left.get(log.timeline, -1)


def weigh(
    entries: Sequence[PositionEntry],
    lost: LsnPosition | None,
    server: ServerIdentity,
    left: dict[int, int],
    next_xid: int,
    *,
    went_back: bool,
) -> Evidence:
    """The last true entry with a snapshot, and from where topics must be read beside it. `next_xid` has 64 bits."""
    for number in range(len(entries) - 1, -1, -1):
        entry = entries[number]
        position = entry.position
        if not (entry.passed and streams(position) and isinstance(position, LsnPosition)):
            continue
        if not is_true(position, lost, server, left, went_back=went_back):
            continue
        oldest = Snapshot.parse(entry.passed).xmin
        if not 0 <= next_xid - oldest < _WRAP // 2:
            # The numbers in rows are too short to tell before from after.
            return Evidence()
        begin = _readable_from(entries[: number + 1], oldest)
        if begin is None:
            return Evidence(oldest % _WRAP, entry)
        from_ms = _latest_ms(begin) + SKEW_MS
        return Evidence(oldest % _WRAP, entry, offsets_at(entries, begin), from_ms)
    return Evidence()


def by_time(entries: Sequence[PositionEntry], until_ms: int | None) -> Evidence:
    """Without snapshots: from where topics must be read to see what was created not long before `until_ms`."""
    if until_ms is None:
        return Evidence()
    # By the later of two clocks: one that is slow would make topics be read from too far on.
    early = [entry for entry in entries if _latest_ms(entry) <= until_ms - LONG_MS - MARGIN_MS]
    if not early:
        return Evidence()
    return Evidence(None, None, offsets_at(entries, early[-1]), _latest_ms(early[-1]) + SKEW_MS)


def _latest_ms(entry: PositionEntry) -> int:
    return max(entry.sampled_ms, entry.position.at_ms)


def _readable_from(entries: Sequence[PositionEntry], oldest: int) -> PositionEntry | None:
    """An entry at which no transaction from `oldest` on had been published; None if none is known.

    A snapshot lists running transactions, but not the parts that have numbers of their own (savepoints): so it counts
    only up to its `xmin`, and what has a later number may have been committed long before the snapshot was taken. But
    not before an older one whose `xmax` it has not reached. The entry before that was noted first lies in front of it.
    """
    behind = [n for n, entry in enumerate(entries) if entry.passed and Snapshot.parse(entry.passed).xmax <= oldest]
    if not behind:
        return None
    first = next(n for n, entry in enumerate(entries) if entry.passed == entries[behind[-1]].passed)
    if first == 0:
        return None
    latest = entries[first - 1].sampled_ms - MARGIN_MS
    for number in range(first - 1, -1, -1):
        if entries[number].sampled_ms <= latest:
            forward = all(a.position.progress <= b.position.progress for a, b in pairwise(entries[number:]))
            alike = len({_log(entry.position) for entry in entries[number:]}) == 1
            return entries[number] if forward and alike else None
    return None


def _log(position: Position) -> tuple[str, int]:
    """Positions are compared within one log only."""
    return (position.log.system_id, position.log.timeline) if isinstance(position, LsnPosition) else ("", 0)
