"""The catalogue side of a source: who the server is, its slot, its publication. Queries only, no decisions.

What is found here is judged in `admission.py`, which is pure.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.errors import AccessRefused, ConfigError, PublicationBroken
from tailrace.lsn import format_lsn, parse_lsn
from tailrace.sources.postgres.admission import Server, Slot
from tailrace.sources.postgres.link import Link
from tailrace.sqlname import quote, quote_table, split_table

OLDEST = 150000


class Published(NamedTuple):
    """How the outbox is published: a text that changes with it, and the table's number, which renaming keeps."""

    fingerprint: str
    relation_id: int


def identify(replication: Link) -> Server:
    system_id, timeline, lsn, database = replication.query("IDENTIFY_SYSTEM")[0]
    return Server(str(system_id), int(timeline or 0), parse_lsn(str(lsn)), str(database))


def require_able(control: Link) -> None:
    """Refuses a server that cannot do logical decoding as we need it, with the line that mends it."""
    if control.server_version < OLDEST:
        raise AccessRefused(
            f"the server is Postgres {control.server_version // 10000}, Tailrace needs 15 or newer",
            why="Older servers do not say how a table is published in the detail that safety needs.",
            remedy="Upgrade the server.",
        )
    level = control.query("SHOW wal_level")[0][0]
    if level != "logical":
        raise AccessRefused(
            f"wal_level is {level}, logical decoding needs `logical`",
            why="The server does not write enough into its log to decode rows from it.",
            remedy="ALTER SYSTEM SET wal_level = 'logical'; then restart Postgres "
            "(on RDS set rds.logical_replication = 1).",
        )


def read_slot(control: Link, name: str) -> Slot | None:
    version = control.server_version
    invalidation = (
        "invalidation_reason"
        if version >= 170000
        else "CASE WHEN conflicting THEN 'conflict' END"
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
    return Slot(
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


def create_slot(replication: Link, name: str, *, failover: bool, timeout: float) -> tuple[int, str]:
    """Creates the slot; returns the LSN it begins at and the name of its exported snapshot.

    The snapshot lives until the next command on this link. Creation waits for transactions that are under way, so
    it gets a timeout of its own.
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
    rows = replication.query(f"CREATE_REPLICATION_SLOT {quote(name)} LOGICAL pgoutput ({options})", timeout=timeout)
    _, lsn, snapshot, _ = rows[0]
    return parse_lsn(str(lsn)), str(snapshot)


def copy_slot(replication: Link, original: str, name: str) -> None:
    """A slot like `original`, which may be in use; it is this session's, and goes with it."""
    # By the simple protocol, a walsender takes no parameters. Postgres itself allows no quotes in a slot's name.
    quoted = [f"'{each}'" for each in (original.replace("'", "''"), name.replace("'", "''"))]
    replication.query(f"SELECT pg_copy_logical_replication_slot({', '.join(quoted)}, true)")


def drop_slot(control: Link, name: str) -> None:
    control.query("SELECT pg_drop_replication_slot($1)", [name])


def drop_seen(control: Link, slot: Slot) -> None:
    """Drops the slot as it was seen: one that was made anew since begins further on, and is left alone."""
    control.query(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
        "WHERE slot_name = $1 AND coalesce(confirmed_flush_lsn, '0/0') = $2::pg_lsn",
        [slot.name, format_lsn(slot.confirmed_lsn)],
    )


def create_publication(publication: str, table: str) -> str:
    """The statement that makes it: inserts only, and a partitioned table as the one table it is."""
    return (
        f"CREATE PUBLICATION {quote(publication)} FOR TABLE {quote_table(table)} "
        "WITH (publish = 'insert', publish_via_partition_root = true)"
    )


def ensure_publication(control: Link, publication: str, table: str, *, create: bool) -> None:
    """Creates the publication if it is missing and may be created; must come before the slot."""
    if control.query("SELECT 1 FROM pg_publication WHERE pubname = $1", [publication]):
        return
    statement = create_publication(publication, table)
    if not create:
        raise PublicationBroken(
            f"there is no publication {publication}",
            why="source.create is false, so Tailrace does not create it.",
            remedy=f"As the owner of the table: {statement};",
        )
    try:
        control.query(statement)
    except AccessRefused as error:
        raise AccessRefused(
            f"the publication {publication} is missing and cannot be created: {error.what}",
            why="Only the owner of the table may publish it.",
            remedy=f"As the owner of the table: {statement};",
        ) from None


def read_published(control: Link, publication: str, table: str) -> Published:
    """Its fingerprint changes whenever rows may have been passed over; raises if the table is not published whole.

    It consists of the numbers of the publication, of the table's memberships (its own, its schema's, its ancestors')
    and of the table. What is dropped and made anew gets another number, and the publication's `xmin` changes with every
    ALTER PUBLICATION … SET.
    """
    schema, name = split_table(table)
    rows = control.query(
        """
        SELECT p.oid, p.xmin, p.pubinsert, c.oid,
               (SELECT string_agg(m.oid::text, '+' ORDER BY m.oid) FROM (
                    SELECT r.oid FROM pg_publication_rel r WHERE r.prpubid = p.oid
                        AND (r.prrelid = c.oid OR r.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid)))
                    UNION ALL
                    SELECT n.oid FROM pg_publication_namespace n
                    WHERE n.pnpubid = p.oid AND n.pnnspid = c.relnamespace) m),
               EXISTS (SELECT FROM pg_publication_rel r
                       WHERE r.prpubid = p.oid AND r.prrelid = c.oid AND r.prqual IS NOT NULL),
               EXISTS (SELECT FROM pg_publication_tables t
                       WHERE t.pubname = p.pubname AND t.schemaname = $2 AND t.tablename = $3)
        FROM pg_publication p
        LEFT JOIN pg_class c ON c.relname = $3 AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $2)
        WHERE p.pubname = $1
        """,
        [publication, schema, name],
    )
    add = f"ALTER PUBLICATION {quote(publication)} ADD TABLE {quote_table(table)};"
    if not rows:
        raise _broken(f"there is no publication {publication}", f"{create_publication(publication, table)};")
    oid, version, inserts, relation, memberships, filtered, published = rows[0]
    if relation is None:
        raise _broken(
            f"there is no table {schema}.{name}",
            "Create it (`tailrace init` prints the DDL) or mend source.table.",
        )
    if published != "t":
        raise _broken(f"the publication {publication} does not contain {schema}.{name}", add)
    if inserts != "t":
        raise _broken(
            f"the publication {publication} does not publish inserts",
            f"ALTER PUBLICATION {quote(publication)} SET (publish = 'insert');",
        )
    if filtered == "t":
        raise _broken(
            f"the publication {publication} has a row filter on {schema}.{name}",
            f"ALTER PUBLICATION {quote(publication)} SET TABLE {quote_table(table)};",
        )
    return Published(f"{oid}.{version}/{memberships or 0}/{relation}", int(relation))


def _broken(problem: str, mend: str) -> PublicationBroken:
    return PublicationBroken(
        problem,
        why="Rows that are not published never reach the stream, without any error from the server.",
        remedy=f"{mend} Rows committed meanwhile are in the table, not in the stream: `tailrace recover plan FILE` "
        "finds them. To go on without them, start once with --adopt.",
    )
