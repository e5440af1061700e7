"""Creates the kit's own tables and a projection's schema.

All names are unqualified: the session's `search_path` selects the schema, so a rebuild can fill a second schema and
swap it in by renaming. Existing tables are not created again: a role with only read and write rights can run a
projection whose tables someone else created. Tables of an earlier version are upgraded.
"""

from __future__ import annotations

from typing import Any, LiteralString

from psycopg import AsyncConnection, sql
from psycopg.errors import InsufficientPrivilege

from tailrace.errors import AccessRefused

_LOCK = 0x7461_696C_7261_6365
"""The advisory lock for creating tables: two concurrent `CREATE … IF NOT EXISTS` can fail."""

UNFINISHED = -1
"""The value of `tailrace_offsets.unfinished` from the first statement of a transaction to its last.

No partition has that number, and COMMIT checks the deferred foreign key: so Postgres itself refuses a COMMIT before the
transaction is complete, such as one of a handler.
"""

_COMMIT_GUARD: LiteralString = """ALTER TABLE {}.tailrace_offsets ADD COLUMN IF NOT EXISTS unfinished integer,
    ADD CONSTRAINT tailrace_no_commit_by_handlers FOREIGN KEY (projection, topic, unfinished)
    REFERENCES {}.tailrace_offsets (projection, topic, partition) DEFERRABLE INITIALLY DEFERRED"""
_HAS_COMMIT_GUARD = """
    SELECT current_schema(), EXISTS (
        SELECT FROM pg_constraint WHERE conname = 'tailrace_no_commit_by_handlers' AND condeferred
        AND conrelid = format('%I.tailrace_offsets', current_schema())::regclass
    )
"""

# Offsets and entities are updated often: free space on each page allows updates without index writes (HOT).
_TABLES: dict[str, LiteralString] = {
    "tailrace_offsets": """
        CREATE TABLE tailrace_offsets (
            projection text NOT NULL, topic text NOT NULL, partition integer NOT NULL,
            next_offset bigint, furthest bigint, updated_at timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (projection, topic, partition)
        ) WITH (fillfactor = 50)""",
    "tailrace_markers": """
        CREATE TABLE tailrace_markers (
            projection text NOT NULL, event_id text NOT NULL, entity text, version bigint,
            time_ms bigint NOT NULL, outcome text NOT NULL, processed_at timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (projection, event_id)
        );
        CREATE INDEX ON tailrace_markers (projection, time_ms) WHERE outcome NOT IN ('dead', 'waiting')""",
    "tailrace_entities": """
        CREATE TABLE tailrace_entities (
            projection text NOT NULL, entity text NOT NULL, version bigint NOT NULL, deleted boolean NOT NULL,
            PRIMARY KEY (projection, entity)
        ) WITH (fillfactor = 70)""",
    "tailrace_waiting": """
        CREATE TABLE tailrace_waiting (
            projection text NOT NULL, event_id text NOT NULL, entity text NOT NULL, version bigint NOT NULL,
            topic text NOT NULL, partition integer NOT NULL, "offset" bigint NOT NULL,
            key bytea, value bytea, headers json NOT NULL, time_ms bigint NOT NULL, since_ms bigint NOT NULL,
            PRIMARY KEY (projection, event_id)
        );
        CREATE INDEX ON tailrace_waiting (projection, entity, version);
        CREATE INDEX ON tailrace_waiting (projection, topic, partition, since_ms)""",
    "tailrace_horizon": """
        CREATE TABLE tailrace_horizon (projection text PRIMARY KEY, horizon_ms bigint NOT NULL)""",
}


async def prepare(connection: AsyncConnection[Any], schema: str, tables: str) -> None:
    """Creates the schema and the kit's tables if missing, then runs the user's DDL in `tables`."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        if schema:
            known = await connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema])
            if not known.rowcount:
                await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        found = await connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename = ANY(%s)",
            [list(_TABLES)],
        )
        present = {row[0] for row in await found.fetchall()}
        for name, statement in _TABLES.items():
            if name not in present:
                await connection.execute(statement)
        await _add_commit_guard(connection)
        if tables.strip():
            # Without parameters it may be several statements. It is the user's own SQL.
            await connection.execute(tables.encode())


async def _add_commit_guard(connection: AsyncConnection[Any]) -> None:
    """Adds the constraint that refuses a COMMIT by handlers, to new tables and to those of an earlier version."""
    [(schema, exists)] = await (await connection.execute(_HAS_COMMIT_GUARD)).fetchall()
    if exists:
        return
    identifier = sql.Identifier(schema)
    statement = sql.SQL(_COMMIT_GUARD).format(identifier, identifier)
    try:
        await connection.execute(statement)
    except InsufficientPrivilege:
        raise AccessRefused(
            f"the table {schema}.tailrace_offsets is of an earlier version, and this role does not own it",
            why="This version needs a new column in it, which protects against a COMMIT by handlers.",
            remedy=f"Have its owner start the worker once, or run: {' '.join(statement.as_string(connection).split())}",
        ) from None
