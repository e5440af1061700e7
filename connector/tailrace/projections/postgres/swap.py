"""Swaps a rebuilt schema in by renaming, in one transaction.

Sessions find their tables by the schema's name, so running workers and readers see the new tables from their next
statement on.
"""

from __future__ import annotations

from psycopg import sql

from tailrace.errors import ConfigError
from tailrace.projections.core.store import CatchUp
from tailrace.projections.postgres.session import Session
from tailrace.projections.postgres.transaction import stored_offsets
from tailrace.projections.postgres.values import array, numbers
from tailrace.sql_names import quote

NEXT = "__next"
OLD = "__old"
# Workers wait for this lock, so the positions do not change.
_LOCK = "LOCK TABLE {}.tailrace_offsets IN ACCESS EXCLUSIVE MODE"
_REACHED = """
    UPDATE {}.tailrace_offsets AS known SET next_offset = greatest(known.next_offset, u.reached)
    FROM unnest(%s::text[], %s::integer[], %s::bigint[]) AS u(topic, number, reached)
    WHERE known.projection = %s AND known.topic = u.topic AND known.partition = u.number
"""
# Views and foreign keys of other schemas: they would be dropped with the old tables.
_DEPENDENTS = """
    SELECT DISTINCT format('%%I.%%I', space.nspname, other.relname) FROM pg_class AS ours
    JOIN (
        SELECT d.refobjid AS upon, r.ev_class AS who FROM pg_depend AS d JOIN pg_rewrite AS r ON r.oid = d.objid
        WHERE d.classid = 'pg_rewrite'::regclass
        UNION SELECT confrelid, conrelid FROM pg_constraint WHERE contype = 'f'
    ) AS built ON built.upon = ours.oid
    JOIN pg_class AS other ON other.oid = built.who JOIN pg_namespace AS space ON space.oid = other.relnamespace
    WHERE ours.relnamespace = %(schema)s::regnamespace AND other.relnamespace <> ours.relnamespace
    LIMIT 5
"""
_OTHERS = "SELECT DISTINCT projection FROM {}.tailrace_offsets WHERE projection <> %s LIMIT 3"


async def swap_schemas(session: Session, schema: str, name: str, catch_up: CatchUp) -> bool:
    """Returns False, with nothing changed, if the copy does not catch up in time."""
    names = {"old": sql.Identifier(schema), "new": sql.Identifier(schema + NEXT), "away": sql.Identifier(schema + OLD)}
    async with session.transaction():
        if not await _exists(session, schema):
            if await catch_up({}) is None:
                return False
            await session.execute(sql.SQL("ALTER SCHEMA {new} RENAME TO {old}").format(**names))
            return True
        await session.execute(sql.SQL(_LOCK).format(names["old"]))
        await _require_alone(session, schema, name)
        reached = await catch_up(await stored_offsets(session, name, schema=schema))
        if reached is None:
            return False
        # A worker of another rebuild finishes its batch first, and starts no other.
        await session.execute(sql.SQL(_LOCK).format(names["new"]))
        partitions = [array([each.topic for each in reached]), numbers([each.number for each in reached])]
        await session.execute(
            sql.SQL(_REACHED).format(names["new"]), [*partitions, numbers([*reached.values()]), name]
        )  # fmt: skip
        await session.execute(sql.SQL("DROP SCHEMA IF EXISTS {away} CASCADE").format(**names))
        await session.execute(sql.SQL("ALTER SCHEMA {old} RENAME TO {away}").format(**names))
        await session.execute(sql.SQL("ALTER SCHEMA {new} RENAME TO {old}").format(**names))
        await session.execute(sql.SQL("DROP SCHEMA {away} CASCADE").format(**names))
    return True


async def _require_alone(session: Session, schema: str, name: str) -> None:
    others = await (await session.execute(sql.SQL(_OTHERS).format(sql.Identifier(schema)), [name])).fetchall()
    if others:
        raise ConfigError(
            f"the schema {schema} also holds other projections: {', '.join(row[0] for row in others)}",
            why="The schema is swapped as a whole.",
            remedy="Give each projection its own schema.",
        )
    dependents = await (await session.execute(_DEPENDENTS, {"schema": quote(schema)})).fetchall()
    if dependents:
        raise ConfigError(
            f"other objects depend on the tables of {schema}: {', '.join(row[0] for row in dependents)}",
            why="They would be dropped with the old tables.",
            remedy="Drop them, rebuild, and create them again; or move them into the store's `tables`.",
        )


async def _exists(session: Session, schema: str) -> bool:
    return bool((await session.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema])).rowcount)
