"""Reading a table or collections for a replay: points as times, and the rows that the pipeline has published.

A replay must never be the first to publish an event: the pipeline would publish it again, and older events of its key
after it. A table does not store the order of commits, so only this is certain: all transactions below an id have ended
before a position that the pipeline has passed. The list of running transactions in a snapshot is not enough, because it
omits subtransactions; its `xmin` is older than all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tailrace.check.health import read_kafka_status
from tailrace.errors import ConfigError, PositionAhead, WrongLog
from tailrace.positions.base import Position, first_read_of, is_streaming, other_kind
from tailrace.positions.mongo import ClusterTime, CollectionRead, TokenPosition
from tailrace.positions.postgres import LsnPosition, TableRead, format_lsn, parse_lsn
from tailrace.positions.recovery_mark import require_complete
from tailrace.replay.points import Lsn, Moment, Oldest, Point
from tailrace.replay.source_log import format_time
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.publication import read_published
from tailrace.sources.postgres.snapshot import SORT_TIMEOUT, Snapshot
from tailrace.sources.postgres.table_rescan import require_same_log
from tailrace.sources.postgres.unpublished_rows import UnpublishedRowsCheck
from tailrace.state.position_history import PositionEntry
from tailrace.verify.verification import ENDED
from tailrace.worker.wiring import Wiring

PATIENCE = 15.0
"""Seconds within which a running pipeline stores its position at least once, even when it is idle."""
POLL_SECONDS = 0.5


def time_of(point: Point | None, entries: Sequence[PositionEntry], option: str) -> int | None:
    """Returns the time of a point; None for no bound. An LSN gets the time of the last entry in the position history
    before it.
    """
    match point:
        case None | Oldest():
            return None
        case Moment(at_ms):
            return at_ms
        case ClusterTime():
            return point.seconds * 1000
        case Lsn(value):
            known = [each.position for each in entries if isinstance(each.position, LsnPosition)]
            times = [position.at_ms for position in known if position.lsn <= value]
            if times:
                return max(times)
    raise ConfigError(
        f"{option} is not a point that a table can be read from",
        why="Rows have a time, but no position in the log.",
        remedy=f"Give a time, such as {option} 3d or {option} 2026-03-01T12:00Z; select single events with --id.",
    )


def stored_position(wiring: Wiring) -> Position:
    stored = read_kafka_status(wiring.kafka).position
    if stored is None:
        raise ConfigError(
            f"the pipeline {wiring.settings.pipeline} has no stored position: it was never started",
            why="Nothing was published yet, so nothing can be replayed.",
            remedy="Start it with `tailrace run`; source.start sets where it begins.",
        )
    if not is_streaming(stored):
        raise ConfigError(
            f"the pipeline {wiring.settings.pipeline} is still reading the outbox for the first time: {stored}",
            why="Until all existing rows are published, there is no position in the log to return to.",
            remedy="Let it finish, then make the plan.",
        )
    _require_own(wiring.database, stored)
    return stored


def _require_own(database: PostgresOptions | MongoOptions, stored: Position) -> None:
    """Refuses settings of another outbox than the one that was read, because the position says nothing about it."""
    if isinstance(database, MongoOptions):
        if not isinstance(stored, TokenPosition):
            raise other_kind(stored, "MongoDB")
        return
    if not isinstance(stored, LsnPosition):
        raise other_kind(stored, "Postgres")
    for what, read, named in (("table", stored.log.table, database.table), ("slot", stored.log.slot, database.slot)):
        if read != named:
            raise WrongLog(
                f"the stored position {stored} belongs to {what} {read}, this is {what} {named}",
                why="The settings were copied together with the name of the pipeline, or were changed since it ran.",
                remedy=f"Give the pipeline its own name, or correct source.{what}. Nothing was changed.",
            )


def from_table(wiring: Wiring, stored: LsnPosition, entries: Sequence[PositionEntry]) -> tuple[LsnPosition, bool]:
    """Returns the start for reading the rows that the pipeline has published, and whether those are all rows."""
    if isinstance(wiring.database, MongoOptions):
        raise TypeError("a position of Postgres, and settings of MongoDB")
    wiring.database.require_table(
        "a replay from the table (--from-table) reads its rows",
        remedy="Replay from the log: source.replay_window sets how much of it is kept.",
    )

    def again() -> Position | None:
        status = read_kafka_status(wiring.kafka)
        return None if status.announced.get("state") in ENDED else status.position

    passed = passed_rows(wiring.database, stored, entries, again)
    return replace(stored, table_read=TableRead(passed.snapshot)), passed.is_all


def from_collections(stored: Position) -> Position:
    """Returns the start for collections; the stream shows what was inserted behind the stored position."""
    if not isinstance(stored, TokenPosition):
        raise TypeError("a position of another kind")
    return replace(stored, collection_read=CollectionRead())


def before_first_start(wiring: Wiring, stored: Position, taken: str, left: str) -> list[str]:
    """Returns a note about rows from before the first start that were never published: they are `taken` or `left`."""
    if first_read_of(stored) is not None:
        if isinstance(stored, LsnPosition):
            return [f"rows that the first read left out (source.start_where) {left}; one changed since counts as new"]
        return [f"documents that the first read left out (source.start_where) {taken}"]
    if wiring.settings.source.start == "beginning":
        return []
    if isinstance(stored, LsnPosition) and stored.begun:
        return [
            f"rows from before the pipeline's first start (source.start: now) {left}; one changed since counts as new"
        ]
    if isinstance(stored, TokenPosition) and stored.begun:
        # Their own times may be wrong: a document left out by its time might have been published.
        when = f" ({format_time(int(stored.begun))})"
        return [
            f"documents from before the pipeline's first start{when} {taken}: MongoDB does not store their commit time"
        ]
    return [f"rows from before the pipeline's first start (source.start: now) {taken}"]


@dataclass(frozen=True, slots=True)
class PublishedRows:
    """`snapshot` shows rows that the pipeline has passed; `is_all`: those are all current rows."""

    snapshot: str
    is_all: bool


def passed_rows(
    options: PostgresOptions,
    stored: LsnPosition,
    entries: Sequence[PositionEntry],
    again: Callable[[], Position | None],
) -> PublishedRows:
    """Returns the rows that the pipeline has passed.

    `again` returns the current stored position, or None if it will not move any more.
    """
    with options.connect() as link:
        # One statement: its snapshot is older than the end of the log that it returns. A slot ahead of the stored
        # position has passed rows that the pipeline has not.
        ((oldest, found, slot, read),) = link.query(
            "SELECT pg_snapshot_xmin(pg_current_snapshot()), CASE WHEN pg_is_in_recovery() "
            "THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END, "
            "(SELECT catalog_xmin FROM pg_replication_slots "
            "WHERE slot_name = $1 AND confirmed_flush_lsn <= $2::pg_lsn), "
            "(SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1)",
            [options.slot, format_lsn(stored.lsn)],
        )
        # Rows that entered the table without the publication have no position, and the pipeline may not have noticed
        # yet.
        if stored.watched:
            published = read_published(link, options)
            UnpublishedRowsCheck(options.table, stored.watched).verify(link, published, timeout=SORT_TIMEOUT)
    now, end = int(oldest or 0), parse_lsn(str(found))
    if stored.lsn > end:
        raise PositionAhead(
            f"the stored position {stored} is beyond the end of the server's log, {format_lsn(end)}",
            why="The server was restored from a backup, or lost its last writes.",
            remedy="Run `tailrace recover plan FILE` first.",
        )
    require_complete(stored.recovery)
    # A process that reads the slot now has checked that the log is the same.
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
            why="The pipeline is not running or is far behind, and neither its slot nor its position history shows it.",
            remedy="Start it and let it catch up, then make the plan. If it cannot start, see `tailrace recover plan`.",
        )
    return PublishedRows(_below(max(known)), is_all=False)


def _reaches(stored: LsnPosition, end: int, again: Callable[[], Position | None]) -> bool:
    deadline = time.monotonic() + PATIENCE
    found: Position | None = stored
    while isinstance(found, LsnPosition):
        # The slot of a recovery begins at the end of the log, and its rows have yet to be published.
        require_complete(found.recovery)
        if found.lsn >= end:
            return not (found.creating or found.table_read)
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
        found = again()
    return False


def _is_true(position: Position, stored: LsnPosition) -> bool:
    """Returns whether an entry belongs to this history; in another one the same ids are other transactions."""
    if not isinstance(position, LsnPosition) or position.lsn > stored.lsn:
        return False
    mine, its = stored.log, position.log
    if position.history != stored.history:
        return False
    return (mine.system_id, mine.timeline, mine.database) == (its.system_id, its.timeline, its.database)


def _full(number: int, now: int) -> int:
    """Returns the 64-bit id of a transaction that is not in the future, from its lower 32 bits."""
    return now - (now - number) % 2**32


def _below(number: int) -> str:
    return f"{number}:{number}:"
