"""Decides which entries of the position history are still valid after the log was lost. Pure.

The snapshot of an entry shows rows that the pipeline had passed. It is valid only for its own log: after a restore or a
failover, transaction ids are assigned again from where the old log was left, so a later entry would take new rows for
old ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tailrace.positions.base import Position, from_stored, is_streaming
from tailrace.positions.first_read import FirstRead
from tailrace.positions.mongo import TokenPosition
from tailrace.positions.postgres import LsnPosition
from tailrace.positions.recovery_mark import Recovery
from tailrace.recovery.rules import LONG_MS, SKEW_MS
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.resume_check import ServerIdentity
from tailrace.sources.postgres.snapshot import Snapshot
from tailrace.state.position_history import Offsets, PositionEntry, offsets_at

MARGIN_MS = 600_000
"""Topics are read from this long before the first event that matters can have been published. The offsets of an entry
are read a moment after its position, and a batch may have been in flight for minutes.
"""
_WRAP = 1 << 32


@dataclass(frozen=True, slots=True)
class Evidence:
    """The proof in the position history: the pipeline has passed rows of transactions before `passed` (32 bits, or
    None).

    All other published rows created at `from_ms` or later are behind `offsets`.
    """

    passed: int | None = None
    entry: PositionEntry | None = None
    offsets: Offsets = field(default_factory=dict)
    from_ms: int = 0


def streams(position: Position | None) -> bool:
    """Returns whether it is a position in the log: neither a first read nor a recovery is under way."""
    return is_streaming(position) and getattr(position, "recovery", None) is None


def begun_before(mark: Recovery) -> str:
    """Returns what is known of the pipeline's first start; empty if the database was restored, perhaps to before it."""
    lost = from_stored(mark.lost) if mark.lost and not mark.went_back else None
    return lost.begun if isinstance(lost, LsnPosition | TokenPosition) else ""


def first_read_before(mark: Recovery, options: PostgresOptions | MongoOptions) -> FirstRead | None:
    """Returns what the first read has left out.

    After a restore without the snapshot, whose transaction ids mean nothing then. If the position is lost, the settings
    say which rows may have been left out.
    """
    lost = from_stored(mark.lost) if mark.lost else None
    if lost is None or getattr(lost, "creating", False):
        return FirstRead(options.start_where) if options.beginning and options.start_where else None
    known = lost.first_read if isinstance(lost, LsnPosition | TokenPosition) else None
    return replace(known, snapshot="") if known is not None and mark.went_back else known


def is_true(
    position: LsnPosition, lost: LsnPosition | None, server: ServerIdentity, left: dict[int, int], *, went_back: bool
) -> bool:
    """Returns whether everything before `position` is also before it in the current log of the server.

    `left` maps earlier timelines to the LSN at which the server left them.
    """
    log = position.log
    if (log.system_id, log.database) != (server.system_id, server.database):
        return False
    if lost is not None and lost.history != position.history:
        return False
    if lost is not None and lost.log.timeline == log.timeline and position.lsn > lost.lsn:
        return False
    if log.timeline == server.timeline:
        # A restored log was written again from an unknown point on.
        return not (went_back and lost is not None and lost.log.timeline == server.timeline)
    return position.lsn <= left.get(log.timeline, -1)


def evaluate(
    entries: Sequence[PositionEntry],
    lost: LsnPosition | None,
    server: ServerIdentity,
    left: dict[int, int],
    next_xid: int,
    *,
    went_back: bool,
) -> Evidence:
    """Returns the last valid entry with a snapshot, and the offsets from which topics must be read. `next_xid` has 64
    bits.
    """
    for number in range(len(entries) - 1, -1, -1):
        entry = entries[number]
        position = entry.position
        if not (entry.passed and streams(position) and isinstance(position, LsnPosition)):
            continue
        if not is_true(position, lost, server, left, went_back=went_back):
            continue
        oldest = Snapshot.parse(entry.passed).xmin
        if not 0 <= next_xid - oldest < _WRAP // 2:
            # The 32-bit ids in rows cannot be ordered over such a distance.
            return Evidence()
        begin = _readable_from(entries[: number + 1], oldest)
        if begin is None:
            return Evidence(oldest % _WRAP, entry)
        from_ms = _latest_ms(begin) + SKEW_MS
        return Evidence(oldest % _WRAP, entry, offsets_at(entries, begin), from_ms)
    return Evidence()


def by_time(entries: Sequence[PositionEntry], until_ms: int | None) -> Evidence:
    """Without snapshots: returns the offsets from which topics must be read to find events created shortly before
    `until_ms`.
    """
    if until_ms is None:
        return Evidence()
    # The later of two clocks: with a slow one, topics would be read from too late an offset.
    early = [entry for entry in entries if _latest_ms(entry) <= until_ms - LONG_MS - MARGIN_MS]
    if not early:
        return Evidence()
    return Evidence(None, None, offsets_at(entries, early[-1]), _latest_ms(early[-1]) + SKEW_MS)


def _latest_ms(entry: PositionEntry) -> int:
    return max(entry.sampled_ms, entry.position.at_ms)


def _readable_from(entries: Sequence[PositionEntry], oldest: int) -> PositionEntry | None:
    """Returns an entry at which no transaction from `oldest` on had been published; None if none is known.

    A snapshot lists running transactions but not their savepoints, which have their own ids. So it is used only up
    to its `xmin`: a later id may have committed long before the snapshot was taken, but not before an older snapshot
    whose `xmax` it has not reached. The entry before the first one with that snapshot is safe.
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
    """Positions can be compared only within one log."""
    return (position.log.system_id, position.log.timeline) if isinstance(position, LsnPosition) else ("", 0)
