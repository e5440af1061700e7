"""A schema that was filled beside another takes its place: by renaming, in one transaction.

Sessions find their tables by the schema's name, so workers and readers that are running see the new tables from their
next statement on.
"""

from __future__ import annotations

from psycopg import sql

from tailrace.errors import ConfigError
from tailrace.projections.core.store import CatchUp, Partition
from tailrace.projections.postgres.session import Session
from tailrace.projections.postgres.values import array, numbers
from tailrace.sql_names import quote

NEXT = "__next"
OLD = "__old"
# Whoever applies events waits here, and the positions of both stand still.
_LOCK = "LOCK TABLE {}.tailrace_offsets IN ACCESS EXCLUSIVE MODE"
_REACHED = """
    UPDATE {}.tailrace_offsets AS known SET next_offset = greatest(known.next_offset, u.reached)
    FROM unnest(%s::text[], %s::integer[], %s::bigint[]) AS u(topic, number, reached)
    WHERE known.projection = %s AND known.topic = u.topic AND known.partition = u.number
"""
_POSITIONS = """
    SELECT topic, partition, next_offset FROM {}.tailrace_offsets WHERE projection = %s AND next_offset IS NOT NULL
"""
# Views and foreign keys of other schemas: they would go with the old tables.
_BUILT_UPON = """
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
    """False if the new one does not get as far as the old one in time; nothing is changed then."""
    names = {"old": sql.Identifier(schema), "new": sql.Identifier(schema + NEXT), "away": sql.Identifier(schema + OLD)}
    async with session.transaction():
        if not await _exists(session, schema):
            if await catch_up({}) is None:
                return False
            await session.execute(sql.SQL("ALTER SCHEMA {new} RENAME TO {old}").format(**names))
            return True
        await session.execute(sql.SQL(_LOCK).format(names["old"]))
        await _require_nobody_else(session, schema, name)
        rows = await (await session.execute(sql.SQL(_POSITIONS).format(names["old"]), [name])).fetchall()
        reached = await catch_up({Partition(topic, number): offset for topic, number, offset in rows})
        if reached is None:
            return False
        # A worker of another rebuild ends its block first, and begins no other.
        await session.execute(sql.SQL(_LOCK).format(names["new"]))
        places = [array([place.topic for place in reached]), numbers([place.number for place in reached])]
        await session.execute(
            sql.SQL(_REACHED).format(names["new"]), [*places, numbers(reached.values()), name]
        )  # fmt: skip
        await session.execute(sql.SQL("DROP SCHEMA IF EXISTS {away} CASCADE").format(**names))
        await session.execute(sql.SQL("ALTER SCHEMA {old} RENAME TO {away}").format(**names))
        await session.execute(sql.SQL("ALTER SCHEMA {new} RENAME TO {old}").format(**names))
        await session.execute(sql.SQL("DROP SCHEMA {away} CASCADE").format(**names))
    return True


async def _require_nobody_else(session: Session, schema: str, name: str) -> None:
    others = await (await session.execute(sql.SQL(_OTHERS).format(sql.Identifier(schema)), [name])).fetchall()
    if others:
        raise ConfigError(
            f"the schema {schema} holds other projections, too: {', '.join(row[0] for row in others)}",
            why="It is swapped as a whole.",
            remedy="Give each projection a schema of its own.",
        )
    built = await (await session.execute(_BUILT_UPON, {"schema": quote(schema)})).fetchall()
    if built:
        raise ConfigError(
            f"others build on the tables of {schema}: {', '.join(row[0] for row in built)}",
            why="They belong to the old tables, and would be dropped with them.",
            remedy="Drop them, rebuild, and make them anew; or move them into the schema's own `tables`.",
        )


async def _exists(session: Session, schema: str) -> bool:
    return bool((await session.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema])).rowcount)
