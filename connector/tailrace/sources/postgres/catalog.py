"""Catalog queries of a source: the identity of the server, and its replication slots.

`resume_check.py` decides what follows from them.
"""

from __future__ import annotations

from tailrace.errors import AccessRefused, ConfigError, Fenced
from tailrace.positions.postgres import format_lsn, parse_lsn
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sources.postgres.resume_check import ServerIdentity, SlotState
from tailrace.sql_names import quote, quote_table

OLDEST = 150000

CREATION_TIMEOUT = 600.0
"""Seconds to create a slot, which waits for the transactions that are running."""


def identify(replication: PgConnection) -> ServerIdentity:
    system_id, timeline, lsn, database = replication.query("IDENTIFY_SYSTEM")[0]
    return ServerIdentity(str(system_id), int(timeline or 0), parse_lsn(str(lsn)), str(database))


def require_able(control: PgConnection) -> None:
    """Raises if the server cannot do logical decoding as needed."""
    if control.server_version < OLDEST:
        raise AccessRefused(
            f"the server is Postgres {control.server_version // 10000}, Tailrace needs 15 or newer",
            why="Older servers do not describe in enough detail how a table is published.",
            remedy="Upgrade the server.",
        )
    level = control.query("SHOW wal_level")[0][0]
    if level != "logical":
        raise AccessRefused(
            f"wal_level is {level}, logical decoding needs `logical`",
            why="The server does not write enough to its log to decode rows from it.",
            remedy="ALTER SYSTEM SET wal_level = 'logical'; then restart Postgres "
            "(on RDS set rds.logical_replication = 1).",
        )


def require_utf8(control: PgConnection) -> None:
    """Raises if the database has another encoding than UTF8: the server sends the content of messages unconverted."""
    encoding = (control.pgconn.parameter_status(b"server_encoding") or b"").decode()
    if encoding != "UTF8":
        raise AccessRefused(
            f"the encoding of the database is {encoding}, and source.messages needs UTF8",
            why="The server converts the columns of rows to UTF-8, but not the content of messages.",
            remedy="Use an outbox table (source.table) in this database, or a database with the encoding UTF8.",
        )


def read_slot(control: PgConnection, name: str) -> SlotState | None:
    version = control.server_version
    invalidation = (
        "invalidation_reason"
        if version >= 170000
        # Postgres 16 calls every invalidation of a logical slot a conflict; only a slot whose WAL is gone has no
        # restart_lsn.
        else "CASE WHEN conflicting AND restart_lsn IS NULL THEN 'wal_removed' WHEN conflicting THEN 'conflict' END"
        if version >= 160000
        else "NULL"
    )
    rows = control.query(
        "SELECT slot_name, plugin, database, active_pid, confirmed_flush_lsn, wal_status, "  # noqa: S608 - ours
        f"{invalidation}, "
        "CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) END, "
        "safe_wal_size FROM pg_replication_slots WHERE slot_name = $1",
        [name],
    )
    if not rows:
        return None
    slot, plugin, database, pid, confirmed, status, invalid, retained, safe = rows[0]
    return SlotState(
        name=str(slot),
        plugin=str(plugin),
        database=str(database),
        active_pid=int(pid) if pid else None,
        confirmed_lsn=parse_lsn(confirmed) if confirmed else 0,
        wal_status=status or "",
        invalidation=invalid,
        retained_bytes=int(float(retained)) if retained else 0,
        safe_bytes=int(safe) if safe else None,
    )


def create_slot(replication: PgConnection, name: str, *, failover: bool) -> tuple[int, str]:
    """Creates the slot; returns the LSN it begins at and the name of its exported snapshot.

    The snapshot lives until the next command on this connection. Creation waits for running transactions.
    """
    options = "SNAPSHOT 'export'"
    if failover:
        if replication.server_version < 170000:
            raise ConfigError(
                "source.failover is set, but the server is older than Postgres 17",
                why="Failover slots came with Postgres 17.",
                remedy="Set failover: false, or upgrade the server.",
            )
        options += ", FAILOVER true"
    rows = replication.query(
        f"CREATE_REPLICATION_SLOT {quote(name)} LOGICAL pgoutput ({options})", timeout=CREATION_TIMEOUT
    )
    _, lsn, snapshot, _ = rows[0]
    return parse_lsn(str(lsn)), str(snapshot)


def copy_slot(replication: PgConnection, original: str, name: str) -> None:
    """Creates a temporary copy of `original`, which may be in use; it is dropped with the session."""
    # A walsender uses the simple protocol, without parameters. Names of slots cannot contain quotes.
    quoted = [f"'{each}'" for each in (original.replace("'", "''"), name.replace("'", "''"))]
    replication.query(f"SELECT pg_copy_logical_replication_slot({', '.join(quoted)}, true)")


def oldest_running(control: PgConnection, exported: str | None = None) -> int:
    """Returns the oldest running transaction (64 bits), now or in the exported snapshot of a slot."""
    return int(snapshot_text(control, exported).partition(":")[0])


def snapshot_text(control: PgConnection, exported: str | None = None) -> str:
    """Returns the current or the exported snapshot as text, as `pg_current_snapshot()` writes it."""
    control.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    if exported is not None:
        control.query(f"SET TRANSACTION SNAPSHOT '{exported}'")
    found = str(control.query("SELECT pg_current_snapshot()")[0][0])
    control.query("COMMIT")
    return found


def exists(control: PgConnection, table: str) -> bool:
    """Whether there is a table of this name."""
    return control.query("SELECT to_regclass($1)", [quote_table(table)])[0][0] is not None


def drop_unused(control: PgConnection, name: str, unused: SlotState | None) -> None:
    """Drops a slot that nobody has read, if it is still the given one; raises Fenced if there is another one.

    A process that was suspended may find the slot of an instance that has taken over.
    """
    if unused is not None:
        control.query(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE slot_name = $1 AND coalesce(confirmed_flush_lsn, '0/0') = $2::pg_lsn",
            [name, format_lsn(unused.confirmed_lsn)],
        )
    if read_slot(control, name) is not None:
        raise Fenced(f"another instance has created the slot {name}")
