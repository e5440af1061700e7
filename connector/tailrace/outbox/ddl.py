"""The SQL that creates an outbox table and a role with the minimal privileges to tail it.

Every identifier is quoted (`sql_names.py`), so names may have any case and characters.
"""

from __future__ import annotations

from tailrace.outbox.layouts import DEBEZIUM, INSIDE, ColumnMap
from tailrace.sql_names import quote, quote_table, split_table


def table_ddl(table: str, column_map: ColumnMap = DEBEZIUM) -> str:
    """Returns the CREATE TABLE statement for this layout."""
    columns = [
        (column_map.id, "uuid PRIMARY KEY"),
        (column_map.aggregate, "varchar(255) NOT NULL"),
        (column_map.key, "varchar(255) NOT NULL"),
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
    body = ",\n".join(f"    {quote(name)} {definition}" for name, definition in defined.items())
    return f"""\
-- A service inserts here in the same transaction as its business rows: both are committed, or neither.
-- A NULL payload is a tombstone. Rows may be deleted at any time: only inserts are published.
CREATE TABLE {quote_table(table)} (
{body}
);
"""


def _version_column(column_map: ColumnMap) -> tuple[str | None, str]:
    column, inside, _ = (column_map.version or "").partition(INSIDE)
    return column or None, "jsonb" if inside else "integer"


def grants_ddl(table: str, role: str, publication: str) -> str:
    """Returns the SQL for the role that tails `table`, with minimal privileges, and for the publication."""
    schema, _ = split_table(table)
    full, who = quote_table(table), quote(role)
    return f"""\
-- Run as the owner of {_comment(full)} (CREATE ROLE … REPLICATION wants a superuser or a cloud's equivalent).

-- LOGIN to connect, REPLICATION to read the log; never a superuser, and nothing that leads to becoming one.
-- No password here: set one with \\password, or use a certificate.
-- Pipelines may share a role: leave this statement out if it exists already.
CREATE ROLE {who} WITH LOGIN REPLICATION NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS;

-- REPLICATION alone would let the role copy the whole cluster (pg_basebackup). Put these lines into pg_hba.conf, above
-- all others, with the database, and the address of the connector; then SELECT pg_reload_conf();
{hba_lines(role)}

-- Only to read the rows already in the table when a pipeline starts with `start: beginning`.
-- The log itself needs no right on the table, and nothing here may write to it.
GRANT USAGE ON SCHEMA {quote(schema)} TO {who};
GRANT SELECT ON TABLE {full} TO {who};

-- The owner makes the publication, so the role needs no CREATE on the database.
-- Only inserts: marking or purging delivered rows never comes back as a change.
-- Via the root, so that a partitioned outbox is one table with one set of columns.
-- Before the slot: a slot cannot see a publication that is younger than its position.
CREATE PUBLICATION {quote(publication)} FOR TABLE {full}
    WITH (publish = 'insert', publish_via_partition_root = true);
"""


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
