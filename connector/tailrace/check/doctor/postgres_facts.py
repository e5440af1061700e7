"""Reads the settings and slots of a Postgres server, in a session that cannot write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.check.doctor.postgres_rules import OtherSlot, PostgresFacts
from tailrace.check.failover import enable_failover
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.options import PostgresOptions

TIMEOUT = 10.0
STATEMENT_TIMEOUT = "8s"
"""Shorter than the timeout of the connection, so that a slow query fails alone."""
_END = "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END"


@contextmanager
def read_only(options: PostgresOptions) -> Iterator[PgConnection]:
    """A session that cannot write and ends slow queries."""
    with PgConnection(options.address, replication=False, timeout=min(options.link_timeout, TIMEOUT)) as link:
        link.query(f"SET default_transaction_read_only = on; SET statement_timeout = '{STATEMENT_TIMEOUT}'")
        yield link


def read_postgres_facts(link: PgConnection, options: PostgresOptions) -> PostgresFacts:
    slots, own_bytes, failover = _slots(link, options.slot)
    settings = _settings(link)
    senders, standbys, in_recovery = link.query(
        "SELECT count(*), coalesce(string_agg(application_name, chr(10)) FILTER (WHERE NOT EXISTS (SELECT FROM "
        "pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')), ''), pg_is_in_recovery() "
        "FROM pg_stat_replication r WHERE application_name IS DISTINCT FROM 'pg_basebackup'"
    )[0]
    physical = [slot.name for slot in slots if slot.physical and slot.active]
    return PostgresFacts(
        version=link.server_version,
        slot=options.slot,
        wal_sender_timeout_ms=int(settings["wal_sender_timeout"]),
        max_slots=int(settings["max_replication_slots"]),
        used_slots=len(slots) + (own_bytes is not None),
        max_senders=int(settings["max_wal_senders"]),
        used_senders=int(senders or 0),
        keep_bytes=_megabytes(settings.get("max_slot_wal_keep_size", "-1")),
        own_bytes=own_bytes,
        others=tuple(slots),
        # A role without pg_read_all_stats sees sessions of others without their names; their slots have names.
        standbys=tuple(dict.fromkeys([*filter(None, str(standbys).split("\n")), *physical])),
        failover=failover,
        wants_failover=options.failover,
        synchronized_slots=settings.get("synchronized_standby_slots", ""),
        in_recovery=in_recovery == "t",
        sync_slots={"on": True, "off": False}.get(settings.get("sync_replication_slots", "")),
        enable_failover=enable_failover(link, options.slot) if failover is False else "",
    )


def _settings(link: PgConnection) -> dict[str, str]:
    wanted = (
        "wal_sender_timeout, max_replication_slots, max_wal_senders, max_slot_wal_keep_size, "
        "synchronized_standby_slots, sync_replication_slots"
    )
    found = link.query("SELECT name, setting FROM pg_settings WHERE name = ANY (string_to_array($1, ', '))", [wanted])
    return {str(name): str(setting or "") for name, setting in found}


def _slots(link: PgConnection, own: str) -> tuple[list[OtherSlot], int | None, bool | None]:
    """Returns the slots of others, and of our own the bytes that it holds and whether it is a failover slot."""
    failover = "failover" if link.server_version >= 170000 else "NULL"
    others: list[OtherSlot] = []
    own_bytes: int | None = None
    is_failover: bool | None = None
    for name, active, retained, kind, temporary, status, over in link.query(
        f"SELECT slot_name, active, coalesce(({_END} - restart_lsn)::bigint, 0), slot_type, temporary, "  # noqa: S608
        f"coalesce(wal_status, ''), {failover} FROM pg_replication_slots ORDER BY slot_name"
    ):
        held = max(0, int(retained or 0))
        if name == own:
            own_bytes, is_failover = held, None if over is None else over == "t"
            continue
        others.append(
            OtherSlot(str(name), active == "t", held, kind == "physical", temporary == "t", lost=status == "lost")
        )
    return others, own_bytes, is_failover


def _megabytes(setting: str) -> int:
    return -1 if setting == "-1" else int(setting) << 20
