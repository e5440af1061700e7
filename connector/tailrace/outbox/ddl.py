"""The SQL that creates an outbox table and a role with the minimal privileges to tail it.

Every statement may run again: what exists is left as it is. Every identifier is quoted (`sql_names.py`), so names may
have any case and characters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b

from tailrace.outbox.daily import partitions_ddl, with_time_in_key
from tailrace.outbox.layouts import DEBEZIUM, INSIDE, ColumnMap
from tailrace.outbox.marks.columns import MarkColumns, require_mark_columns
from tailrace.outbox.specs import LAYOUTS, TableColumn
from tailrace.sql_names import NAME_BYTES, beside, quote, quote_table, split_table

REASONS = (
    "max_retries_exceeded",
    "poison_message",
    "schema_validation_failed",
    "processing_timeout",
    "permanent_failure",
)
_INDEXES = {
    "document": (
        ("status", "created_at"),
        ("status", "published_at"),
        ("locked_until",),
        ("entity_id", "entity_version"),
    ),
    "streams": (),
    "storage": (
        ("delivery_status",),
        ("next_retry_at",),
        ("aggregate_id", "aggregate_type", "sequence_number"),
        ("created_at",),
        ("event_type",),
    ),
}
_PARTIAL: dict[tuple[str, tuple[str, ...]], str] = {
    ("storage", ("next_retry_at",)): "delivery_status IN ('pending', 'failed')"
}
"""Conditions of indexes that cover only rows that are not delivered."""


def outbox_ddl(
    layout: str, table: str, role: str, publication: str, *, by_day: bool = False, marks: str = "none"
) -> str:
    """Returns the SQL for the table of a named layout, for the role that tails it, and for the publication.

    `by_day`: the table is partitioned by the day of its rows. `marks`: the delivery marks that the role may write.
    """
    columns = require_mark_columns(layout) if marks == "rows" else None
    if layout == "debezium":
        # A time that the row carries itself orders a first read; Debezium's table has none.
        created = table_ddl(table, replace(DEBEZIUM, timestamp="created_at"), by_day=by_day)
    else:
        created = layout_ddl(layout, table, by_day=by_day)
    partitions = partitions_ddl(table) if by_day else ""
    further = "" if marks == "none" else f"\n{_marks_ddl(table, role, marks, columns)}"
    return f"{created}{partitions}\n{grants_ddl(table, role, publication, writes=columns is not None)}{further}"


def table_ddl(table: str, column_map: ColumnMap = DEBEZIUM, *, by_day: bool = False) -> str:
    """Returns the CREATE TABLE statement for a table with these columns."""
    columns = [
        (column_map.id, "uuid PRIMARY KEY"),
        (column_map.aggregate, "varchar(255) NOT NULL"),
        (None if INSIDE in column_map.key else column_map.key, "varchar(255) NOT NULL"),
        (column_map.type, "varchar(255) NOT NULL"),
        _version_column(column_map),
        (column_map.payload, "jsonb"),
        (column_map.timestamp or "created_at", "timestamptz NOT NULL DEFAULT now()"),
    ]
    # One column may have two parts, such as the id as the key: the first definition counts.
    defined: dict[str, str] = {}
    for name, definition in columns:
        if name is not None:
            defined.setdefault(name, definition)
    return f"""\
-- A service inserts here in the same transaction as its business rows: both are committed, or neither.
-- A NULL payload is a tombstone. Rows may be deleted at any time: only inserts are published.
{_create(table, defined.items(), column_map.timestamp or "created_at" if by_day else None)}"""


def layout_ddl(layout: str, table: str, *, by_day: bool = False) -> str:
    """Returns the statements for the tables and indexes of a named layout."""
    columns = LAYOUTS[layout].table
    rows = """\
-- A service inserts here in the same transaction as its business rows: both are committed, or neither.
-- Only inserts are published: the columns about delivery may be updated, and rows deleted, at any time.
"""
    time = LAYOUTS[layout].columns.timestamp if by_day else None
    parts = [
        rows + _create(table, _named(columns), time),
        *(_index(layout, table, names) for names in _INDEXES[layout]),
    ]
    if layout == "storage":
        parts += [*_dead_letters(table, columns), *_wal(table), _counters(table)]
    return "".join(parts)


def storage_tables(table: str) -> tuple[str, str, str]:
    """Returns the quoted names of the tables beside a storage outbox: dead letters, WAL log, counters."""
    return beside(table, "_dlq"), beside(table, "_wal"), beside(table, "_counters")


def _dead_letters(table: str, columns: Iterable[TableColumn]) -> list[str]:
    """Not LIKE … INCLUDING ALL, which would copy the primary key. The original row may be purged before its letter."""
    dlq, _, _ = storage_tables(table)
    same = [(column.name, column.definition.replace("PRIMARY KEY", "NOT NULL")) for column in columns]
    reasons = "".join(f"\n            '{reason}'," for reason in REASONS).rstrip(",")
    own = [
        ("dlq_id", "varchar(64) PRIMARY KEY"),
        ("moved_to_dlq_at", "timestamptz NOT NULL DEFAULT now()"),
        ("dlq_reason", f"varchar(50) NOT NULL\n        CHECK (dlq_reason IN ({reasons}))"),
        ("failure_details", "jsonb NOT NULL DEFAULT '{}'"),
        ("recovery_instructions", "jsonb NOT NULL DEFAULT '{}'"),
        ("original_outbox_id", "varchar(64) NOT NULL"),
    ]
    why = "\n-- Copies of rows that could not be published. No foreign key: an old outbox row may be deleted before.\n"
    indexes = [
        _index_on(dlq, table, "_dlq", (name,)) for name in ("moved_to_dlq_at", "dlq_reason", "original_outbox_id")
    ]
    return [why + _create_quoted(dlq, [*same, *own]), *indexes]


def _wal(table: str) -> list[str]:
    _, wal, _ = storage_tables(table)
    columns = [
        ("wal_id", "varchar(64) PRIMARY KEY"),
        ("outbox_id", "varchar(64) NOT NULL"),
        (
            "operation_type",
            "varchar(20) NOT NULL\n        CHECK (operation_type IN ('insert', 'update', 'delete', 'checkpoint'))",
        ),
        ("wal_timestamp", "timestamptz NOT NULL DEFAULT now()"),
        ("wal_lsn", "pg_lsn NOT NULL"),
        ("transaction_id", "varchar(50)"),
        ("checkpoint_data", "jsonb NOT NULL DEFAULT '{}'"),
    ]
    why = "\n-- Where each row is in the log of the database. No foreign key: the entry of a delete outlives its row.\n"
    indexes = [_index_on(wal, table, "_wal", (name,)) for name in ("outbox_id", "wal_lsn", "wal_timestamp")]
    return [why + _create_quoted(wal, columns), *indexes]


def _counters(table: str) -> str:
    _, _, counters = storage_tables(table)
    columns = [
        ("aggregate_type", "varchar(50)"),
        ("aggregate_id", "varchar(255)"),
        ("last_sequence", "bigint NOT NULL"),
    ]
    why = (
        "\n-- The last sequence number of each aggregate. It is locked until the commit, so numbers have no gaps.\n"
        "-- (aggregate, number) is not unique in the outbox: a replayed row repeats its number.\n"
    )
    return why + _create_quoted(counters, columns, "PRIMARY KEY (aggregate_type, aggregate_id)")


def _version_column(column_map: ColumnMap) -> tuple[str | None, str]:
    column, inside, _ = (column_map.version or "").partition(INSIDE)
    return column or None, "jsonb" if inside else "varchar(32)"


def _named(columns: Iterable[TableColumn]) -> list[tuple[str, str]]:
    return [(column.name, column.definition) for column in columns]


def _create(table: str, columns: Iterable[tuple[str, str]], by: str | None = None) -> str:
    """`by` is the column that the table is partitioned by, if it is."""
    if by is None:
        return _create_quoted(quote_table(table), columns)
    plain, key = with_time_in_key(list(columns), by)
    return _create_quoted(quote_table(table), plain, key, ending=f" PARTITION BY RANGE ({quote(by)})")


def _create_quoted(table: str, columns: Iterable[tuple[str, str]], *further: str, ending: str = "") -> str:
    lines = [*(f"{quote(name)} {definition}" for name, definition in columns), *further]
    body = ",\n".join(f"    {line}" for line in lines)
    return f"CREATE TABLE IF NOT EXISTS {table} (\n{body}\n){ending};\n"


def _index(layout: str, table: str, columns: tuple[str, ...]) -> str:
    return _index_on(quote_table(table), table, "", columns, _PARTIAL.get((layout, columns), ""))


def _index_on(quoted: str, table: str, suffix: str, columns: tuple[str, ...], where: str = "") -> str:
    """Index names are unique in a schema, so they contain the name of the table; a long one is shortened."""
    name = f"{split_table(table)[1]}{suffix}_{'_'.join(columns)}_idx"
    if len(name.encode()) > NAME_BYTES:
        name = f"tailrace_{blake2b(name.encode(), digest_size=12).hexdigest()}_idx"
    listed = ", ".join(map(quote, columns))
    condition = f"\n    WHERE {where}" if where else ""
    return f"CREATE INDEX IF NOT EXISTS {quote(name)}\n    ON {quoted} ({listed}){condition};\n"


def grants_ddl(table: str, role: str, publication: str, *, writes: bool = False) -> str:
    """Returns the SQL for the role that tails `table`, with minimal privileges, and for the publication.

    `writes`: other statements let the role write to the table.
    """
    schema, _ = split_table(table)
    full, who = quote_table(table), quote(role)
    new_role = f"CREATE ROLE {who} WITH LOGIN REPLICATION NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS;"
    new_publication = f"""\
CREATE PUBLICATION {quote(publication)} FOR TABLE {full}
            WITH (publish = 'insert', publish_via_partition_root = true);"""
    nothing_more = "." if writes else ", and nothing here may write to it."
    return f"""\
-- Run as the owner of {_comment(full)} (CREATE ROLE … REPLICATION wants a superuser or a cloud's equivalent).

-- LOGIN to connect, REPLICATION to read the log; never a superuser, and nothing that leads to becoming one.
-- No password here: set one with \\password, or use a certificate. Pipelines may share a role.
{_unless("pg_roles", "rolname", role, new_role)}
-- REPLICATION alone would let the role copy the whole cluster (pg_basebackup). Put these lines into pg_hba.conf, above
-- all others, with the database, and the address of the connector; then SELECT pg_reload_conf();
{hba_lines(role)}

-- Only to read the rows already in the table when a pipeline starts with `start: beginning`.
-- The log itself needs no right on the table{nothing_more}
GRANT USAGE ON SCHEMA {quote(schema)} TO {who};
GRANT SELECT ON TABLE {full} TO {who};

-- The owner makes the publication, so the role needs no CREATE on the database.
-- Only inserts: marking or purging delivered rows never comes back as a change.
-- Via the root, so that a partitioned outbox is one table with one set of columns.
-- Before the slot: a slot cannot see a publication that is younger than its position.
{_unless("pg_publication", "pubname", publication, new_publication)}"""


def _marks_ddl(table: str, role: str, marks: str, columns: MarkColumns | None) -> str:
    """Returns the grants for delivery marks; `columns` are those that row marks write."""
    schema, _ = split_table(table)
    who = quote(role)
    lines = [
        f"-- Delivery marks (`marks: {marks}`). The connector creates two small tables and a view beside the outbox.",
        f"GRANT CREATE ON SCHEMA {quote(schema)} TO {who};",
    ]
    if columns is not None:
        names = ", ".join(map(quote, columns.names))
        lines += [
            "-- The columns that a mark writes.",
            f"GRANT UPDATE ({names})\n    ON TABLE {quote_table(table)} TO {who};",
        ]
        if columns.copies is not None:
            copies = beside(table, columns.copies)
            lines += [
                "-- A dead-lettered row is copied in the transaction of its mark.",
                f"GRANT SELECT, INSERT, UPDATE ON TABLE {copies} TO {who};",
            ]
    return "\n".join(lines) + "\n"


def _unless(catalog: str, column: str, name: str, statement: str) -> str:
    """Returns a block that runs the statement unless the catalog has the name."""
    literal = "E'" + name.replace("\\", "\\\\").replace("'", "''") + "'"
    body = f"""\
BEGIN
    IF NOT EXISTS (SELECT FROM {catalog} WHERE {column} = {literal}) THEN
        {statement}
    END IF;
END"""
    tag = "$do$"
    while tag in body:  # a name may contain anything
        tag = f"{tag[:-1]}_$"
    return f"DO {tag}\n{body} {tag};\n"


def hba_lines(role: str, *, prefix: str = "--   ") -> str:
    """Returns lines of pg_hba.conf that allow logical replication of one database, but no copy of the cluster."""
    who = _comment(quote(role))
    lines = [
        ("local", "replication", who, "", "reject"),
        ("host", "replication", who, "all", "reject"),
        ("hostssl", "DATABASE", who, "ADDRESS/32", "scram-sha-256"),
    ]
    return "\n".join(f"{prefix}{kind:<8} {of:<12} {whom:<16} {where:<12} {how}" for kind, of, whom, where, how in lines)


def _comment(text: str) -> str:
    """Removes line breaks from a name, which would end the comment and start a statement."""
    return " ".join(text.split())
