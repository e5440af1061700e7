"""Asks Postgres about a pipeline: its slot, who reads it, and the WAL after the stored position."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tailrace.check.health import Lag, SourceStatus
from tailrace.positions.base import Position
from tailrace.positions.postgres import LsnPosition, format_lsn, parse_lsn
from tailrace.sources.postgres import catalog
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.observation import NOISE_BYTES
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.resume_check import SlotState

LOOK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PostgresStatus:
    """The catalogue's answers. `inactive_ms`: since when the slot is unused (Postgres 17 and newer)."""

    slot: SlotState | None
    lsn: int
    now_ms: int
    reading_table: bool = False
    inactive_ms: int | None = None


def read_postgres(options: PostgresOptions, position: Position | None) -> SourceStatus:
    with PgConnection(options.address, replication=False, timeout=min(options.link_timeout, LOOK_SECONDS)) as link:
        slot = catalog.read_slot(link, options.slot)
        # While existing rows of the table are read, the slot is unused: the reading session shows that it runs.
        now, lsn, readers = link.query(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, "
            "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, "
            "(SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailrace' AND datname = "
            "current_database() AND query LIKE '%outbox\\_rows%' AND pid <> pg_backend_pid())"
        )[0]
        inactive = None
        if link.server_version >= 170000:
            rows = link.query(
                "SELECT (extract(epoch FROM inactive_since) * 1000)::bigint FROM pg_replication_slots "
                "WHERE slot_name = $1",
                [options.slot],
            )
            inactive = int(rows[0][0]) if rows and rows[0][0] else None
    return interpret(PostgresStatus(slot, parse_lsn(str(lsn)), int(now or 0), readers != "0", inactive), position)


def interpret(reported: PostgresStatus, position: Position | None) -> SourceStatus:
    """Derives the status of a pipeline at this position. Pure."""
    slot, reader = reported.slot, reported.slot.active_pid if reported.slot else None
    stored = position if isinstance(position, LsnPosition) else None
    lag: Lag | None = None
    if stored is not None and not stored.creating:
        behind = max(0, reported.lsn - stored.lsn)
        lag = Lag(stored.at_ms if behind else None, behind, noise=behind <= NOISE_BYTES)
    # Published but not confirmed: the replay window, and what was published a moment ago.
    held = max(0, stored.lsn - slot.confirmed_lsn) if slot is not None and stored is not None else 0
    # The reading session may belong to another pipeline of the database.
    reading = reported.reading_table and reader is None and stored is not None and stored.table_read is not None
    return SourceStatus(
        now_ms=reported.now_ms,
        reader="" if reader is None else f"the slot is read by server process {reader}",
        absence="the slot is not in use" if slot else "there is no slot",
        reading="reading the rows that existed before the first start" if reading else "",
        inactive_ms=reported.inactive_ms,
        lag=lag,
        slot=None
        if slot is None
        else {**asdict(slot), "confirmed_lsn": format_lsn(slot.confirmed_lsn), "held_bytes": held},
    )
