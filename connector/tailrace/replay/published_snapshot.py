"""Which rows of a Postgres table the pipeline is known to have published by now, as a snapshot.

A replay must not be the first to publish anything: the pipeline would publish it again, and older events of its key
after it. A table does not know the order of commits, so only this is certain: transactions below a number have all
ended before a place in the log that the pipeline has passed. The running ones of a snapshot are not enough to go by,
for a snapshot's text leaves subtransactions out; its `xmin` is older than any of those, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailrace.errors import ConfigError, PositionAhead
from tailrace.positions.base import Position
from tailrace.positions.lsn import format_lsn, parse_lsn
from tailrace.positions.postgres import LsnPosition
from tailrace.positions.recovery_mark import require_complete
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.publication import read_published
from tailrace.sources.postgres.snapshot import SORT_TIMEOUT, Snapshot
from tailrace.sources.postgres.table_rescan import require_same_log
from tailrace.sources.postgres.unpublished_rows import PartitionWatch
from tailrace.state.position_history import PositionEntry

PATIENCE = 15.0
"""Seconds in which a running pipeline stores its position at least once, also when it is idle."""
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class PublishedRows:
    """`snapshot` shows rows that are passed; `is_all`: it shows all that are there now."""

    snapshot: str
    is_all: bool


def passed_rows(
    options: PostgresOptions,
    stored: LsnPosition,
    entries: Sequence[PositionEntry],
    again: Callable[[], Position | None],
) -> PublishedRows:
    """`again` gives the stored position as it is by then, or None if it will not move any more."""
    with options.connect() as link:
        # One statement: its snapshot is older than the end of the log that it then asks for.
        # A slot that is ahead of the stored position has passed what the pipeline has not.
        ((oldest, found, slot, read),) = link.query(
            "SELECT pg_snapshot_xmin(pg_current_snapshot()), CASE WHEN pg_is_in_recovery() "
            "THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END, "
            "(SELECT catalog_xmin FROM pg_replication_slots "
            "WHERE slot_name = $1 AND confirmed_flush_lsn <= $2::pg_lsn), "
            "(SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1)",
            [options.slot, format_lsn(stored.lsn)],
        )
        # Rows that entered the table past the publication have no position, and the pipeline may not have noticed yet.
        if stored.watched:
            published = read_published(link, options)
            PartitionWatch(options.table, stored.watched).verify(link, published, timeout=SORT_TIMEOUT)
    now, end = int(oldest or 0), parse_lsn(str(found))
    if stored.lsn > end:
        raise PositionAhead(
            f"the stored position {stored} is beyond the end of the server's log, {format_lsn(end)}",
            why="The server was restored from a backup, or lost its last writes.",
            remedy="See `tailrace recover plan FILE` first.",
        )
    require_complete(stored.recovery)
    # While the slot is read, whoever reads it has seen to it that the log is the one that was read before.
    known_log = read is not None or stored.last is None or require_same_log(options, stored)
    if _reaches(stored, end, again):
        return PublishedRows(_below(now), is_all=True)
    known = [_full(int(slot), now)] if slot else []
    known += [
        Snapshot.parse(entry.passed).xmin
        for entry in entries
        if known_log and entry.passed and _is_true(entry.position, stored)
    ]
    if not known:
        raise ConfigError(
            "which rows of the table the pipeline has published is not known",
            why="It is not running, or is far behind, and neither its slot nor its ledger tells.",
            remedy="Start it and let it catch up, then make the plan; if it cannot start, see `tailrace recover plan`.",
        )
    return PublishedRows(_below(max(known)), is_all=False)


def _reaches(stored: LsnPosition, end: int, again: Callable[[], Position | None]) -> bool:
    deadline = time.monotonic() + PATIENCE
    found: Position | None = stored
    while isinstance(found, LsnPosition):
        # The slot of a recovery begins at the end of the log, and its rows are still to be published.
        require_complete(found.recovery)
        if found.lsn >= end:
            return not (found.creating or found.table_read)
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
        found = again()
    return False


def _is_true(position: Position, stored: LsnPosition) -> bool:
    """An entry of another history has other transactions under the same numbers."""
    if not isinstance(position, LsnPosition) or position.lsn > stored.lsn:
        return False
    mine, its = stored.log, position.log
    if position.history != stored.history:
        return False
    return (mine.system_id, mine.timeline, mine.database) == (its.system_id, its.timeline, its.database)


def _full(number: int, now: int) -> int:
    """The 64-bit number of a transaction of which only the lower 32 bits are known, and that is not later than now."""
    return now - (now - number) % 2**32


def _below(number: int) -> str:
    return f"{number}:{number}:"
