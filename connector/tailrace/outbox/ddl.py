"""The SQL that makes an outbox table, and the role with the fewest rights that can tail it. Text only.

Every identifier is quoted, so a name means what it says whatever its case or characters. A table is written
`table` or `schema.table`; a part that contains a dot goes in double quotes, as in SQL. Without a schema,
`public`.
"""

from __future__ import annotations

import re

from tailrace.errors import ConfigError
from tailrace.outbox.layouts import DEBEZIUM, ColumnMap

NAME_BYTES = 63
"""NAMEDATALEN - 1. Postgres cuts longer names silently, and the cut name would then never match."""

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


def quote(name: str) -> str:
    """`name` as an SQL identifier."""
    if not name or "\0" in name or len(name.encode()) > NAME_BYTES:
        raise ConfigError(
            f"{name[:80]!r} cannot be a Postgres name",
            why=f"A name has 1 to {NAME_BYTES} bytes and no NUL.",
            remedy="Choose another name.",
        )
    return '"' + name.replace('"', '""') + '"'


def split_table(table: str) -> tuple[str, str]:
    """(schema, table) of a name as people write it."""
    parts: list[str] = []
    at = 0
    while match := _PART.match(table, at):
        quoted, bare = match.groups()
        parts.append(bare if quoted is None else quoted.replace('""', '"'))
        at = match.end()
        if table[at : at + 1] != ".":
            break
        at += 1
    if at != len(table) or table.endswith(".") or len(parts) not in (1, 2):
        raise ConfigError(
            f"{table[:150]!r} is not a table's name",
            why="It must be `table` or `schema.table`.",
            remedy='Put a part that contains a dot in double quotes: shop."out.box".',
        )
    return (parts[0], parts[1]) if len(parts) == 2 else ("public", parts[0])


def quote_table(table: str) -> str:
    """The table's full name as SQL."""
    schema, name = split_table(table)
    return f"{quote(schema)}.{quote(name)}"


def table_ddl(table: str, column_map: ColumnMap = DEBEZIUM) -> str:
    """CREATE TABLE for an outbox of this layout."""
    columns = [
        (column_map.id, "uuid PRIMARY KEY"),
        (column_map.aggregate, "varchar(255) NOT NULL"),
        (column_map.key, "varchar(255) NOT NULL"),
        (column_map.type, "varchar(255) NOT NULL"),
        (column_map.version, "integer"),
        (column_map.payload, "jsonb"),
        (column_map.timestamp or "created_at", "timestamptz NOT NULL DEFAULT now()"),
    ]
    # One column may play two parts (the id as the key, say): the first definition stands.
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


def grants_ddl(table: str, role: str, publication: str) -> str:
    """The role that tails `table` and the publication it reads, with no right more than that takes."""
    schema, _ = split_table(table)
    full, who = quote_table(table), quote(role)
    return f"""\
-- Run as the owner of {_comment(full)} (CREATE ROLE … REPLICATION wants a superuser or a cloud's equivalent).

-- LOGIN to connect, REPLICATION to read the log; never a superuser, and nothing that leads to becoming one.
-- No password here: set one with \\password, or use a certificate.
-- Pipelines may share a role: leave this statement out if it exists already.
CREATE ROLE {who} WITH LOGIN REPLICATION NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS;

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


def _comment(text: str) -> str:
    """A name may contain a line break, which would end the comment and start a statement."""
    return " ".join(text.split())
