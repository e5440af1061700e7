"""A failover: is a position of an earlier timeline a place in the log of the server that was promoted?

A standby that is promoted goes on under a new timeline, and its history says where it left each earlier one. Up to
there both logs are the same, byte for byte: a position that lies before that point is as good in the new log. One that
lies behind it names transactions that the server does not have, and is left as it is, to be refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tailrace.errors import SourceError, SourceUnavailable
from tailrace.positions.postgres import LsnPosition, parse_lsn
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.resume_check import ServerIdentity

FIRST = 1
HANDING_ON = 170000
"""Servers from this version on hand slots on to standbys."""


def forks(history: str) -> dict[int, int]:
    """From a timeline's history: where each earlier timeline was left."""
    found: dict[int, int] = {}
    for line in history.splitlines():
        parts = line.split()
        if len(parts) > 1 and parts[0].isdigit():
            found[int(parts[0])] = parse_lsn(parts[1])
    return found


def read_forks(replication: PgConnection, server: ServerIdentity) -> dict[int, int]:
    """Where the server's log left its earlier timelines; none if it has lost its history: then nothing is certain."""
    if server.timeline == FIRST:
        return {}
    try:
        return forks(str(replication.query(f"TIMELINE_HISTORY {server.timeline}")[0][1]))
    except SourceError:
        return {}


def follow(replication: PgConnection, stored: LsnPosition, server: ServerIdentity) -> LsnPosition:
    """Asks the server for its history if that matters; see `followed`."""
    if stored.log.timeline == server.timeline:
        return stored
    return followed(stored, server, read_forks(replication, server))


def followed(stored: LsnPosition, server: ServerIdentity, left: Mapping[int, int]) -> LsnPosition:
    """`stored` on the server's timeline, if all that lies before it is in the server's log; else as it is."""
    log = stored.log
    if (log.system_id, log.database) != (server.system_id, server.database) or log.timeline not in left:
        return stored
    if stored.creating or stored.table_read or stored.recovery:
        return stored
    end = left[log.timeline]
    # Of a transaction that was published in part, the commit must be there, too.
    if stored.lsn > end or (stored.cut is not None and stored.cut.commit_lsn >= end):
        return stored
    return replace(stored, log=replace(log, timeline=server.timeline))


def require_promoted(control: PgConnection, slot: str) -> None:
    """A slot that is handed on to a standby cannot be read there; once that is promoted, it can."""
    if control.server_version < HANDING_ON:
        return
    if control.query(
        "SELECT 1 FROM pg_replication_slots WHERE slot_name = $1 AND synced AND pg_is_in_recovery()", [slot]
    ):
        raise SourceUnavailable(
            f"the server is a standby, to which the slot {slot} is handed on",
            why="It has not been promoted, or this address is not the primary's.",
            remedy="A pipeline that runs tries again by itself, and goes on when the server is promoted.",
        )
