"""Failover: moves a position of an earlier timeline to the timeline of the promoted server.

A promoted standby continues on a new timeline, and its timeline history has the LSN at which each earlier timeline
ended. Up to that LSN both logs are identical, so a position before it is valid on the new timeline. A position behind
it names transactions that the server does not have; it is left unchanged, and the resume check refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tailrace.errors import SourceError, SourceUnavailable
from tailrace.positions.postgres import LsnPosition, parse_lsn
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.resume_check import ServerIdentity

FIRST = 1
SYNCED_SLOTS = 170000
"""The first version that can synchronise slots to standbys."""


def forks(history: str) -> dict[int, int]:
    """Parses a timeline history: returns the LSN at which each earlier timeline ended."""
    found: dict[int, int] = {}
    for line in history.splitlines():
        parts = line.split()
        if len(parts) > 1 and parts[0].isdigit():
            found[int(parts[0])] = parse_lsn(parts[1])
    return found


def read_forks(replication: PgConnection, server: ServerIdentity) -> dict[int, int]:
    """Returns where the server's earlier timelines ended; nothing if it has lost its history file."""
    if server.timeline == FIRST:
        return {}
    try:
        return forks(str(replication.query(f"TIMELINE_HISTORY {server.timeline}")[0][1]))
    except SourceError:
        return {}


def follow(replication: PgConnection, stored: LsnPosition, server: ServerIdentity) -> LsnPosition:
    """Reads the server's history if it is needed; see `followed`."""
    if stored.log.timeline == server.timeline:
        return stored
    return followed(stored, server, read_forks(replication, server))


def followed(stored: LsnPosition, server: ServerIdentity, left: Mapping[int, int]) -> LsnPosition:
    """Returns `stored` on the server's timeline if the server has everything before it; else unchanged."""
    log = stored.log
    if (log.system_id, log.database) != (server.system_id, server.database) or log.timeline not in left:
        return stored
    if stored.creating or stored.table_read or stored.recovery:
        return stored
    end = left[log.timeline]
    # The commit of a transaction that is published in part must be there, too.
    if stored.lsn > end or (stored.cut is not None and stored.cut.commit_lsn >= end):
        return stored
    return replace(stored, log=replace(log, timeline=server.timeline))


def require_promoted(control: PgConnection, slot: str) -> None:
    """Raises if the server is a standby: a synchronised slot can be read only after the promotion."""
    if control.server_version < SYNCED_SLOTS:
        return
    if control.query(
        "SELECT 1 FROM pg_replication_slots WHERE slot_name = $1 AND synced AND pg_is_in_recovery()", [slot]
    ):
        raise SourceUnavailable(
            f"the server is a standby to which the slot {slot} is synchronised",
            why="It is not promoted yet, or this is not the address of the primary.",
            remedy="A running pipeline retries by itself, and continues when the server is promoted.",
        )
