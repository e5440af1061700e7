"""A schema that was filled beside another takes its place: by renaming, in one transaction.

Sessions find their tables by the schema's name, so workers and readers that are running see the new tables from their
next statement on.
"""

from __future__ import annotations

from collections.abc import Mapping

from psycopg import sql

from tailrace.errors import ConfigError
from tailrace.projections.postgres_session import Session
from tailrace.projections.postgres_values import array, numbers
from tailrace.projections.store import Partition

NEXT = "__next"
OLD = "__old"
# Whoever applies events waits here, and the positions of both stand still.
_LOCK = "LOCK TABLE {}.tailrace_offsets IN ACCESS EXCLUSIVE MODE"
_REACHED = """
    UPDATE {}.tailrace_offsets AS known SET next_offset = greatest(known.next_offset, u.reached)
    FROM unnest(%s::text[], %s::integer[], %s::bigint[]) AS u(topic, number, reached)
    WHERE known.projection = %s AND known.topic = u.topic AND known.partition = u.number
"""
_BEHIND = """
    SELECT count(*) FROM {old}.tailrace_offsets AS was
    LEFT JOIN {new}.tailrace_offsets AS now USING (projection, topic, partition)
    WHERE was.projection = %s AND was.next_offset > coalesce(now.next_offset, -1)
"""
_OTHERS = "SELECT DISTINCT projection FROM {}.tailrace_offsets WHERE projection <> %s LIMIT 3"


async def swap_schemas(session: Session, schema: str, name: str, reached: Mapping[Partition, int]) -> bool:
    """False if the new one is not as far as the old one; nothing is changed then."""
    names = {"old": sql.Identifier(schema), "new": sql.Identifier(schema + NEXT), "away": sql.Identifier(schema + OLD)}
    async with session.transaction():
        if not await _exists(session, schema):
            await session.execute(sql.SQL("ALTER SCHEMA {new} RENAME TO {old}").format(**names))
            return True
        await session.execute(sql.SQL(_LOCK).format(names["old"]))
        others = await (await session.execute(sql.SQL(_OTHERS).format(names["old"]), [name])).fetchall()
        if others:
            raise ConfigError(
                f"the schema {schema} holds other projections, too: {', '.join(row[0] for row in others)}",
                why="It is swapped as a whole.",
                remedy="Give each projection a schema of its own.",
            )
        places = [array([place.topic for place in reached]), numbers([place.number for place in reached])]
        given = [*places, numbers(reached.values()), name]
        await session.execute(sql.SQL(_REACHED).format(names["new"]), given)
        behind = await (await session.execute(sql.SQL(_BEHIND).format(**names), [name])).fetchone()
        if behind is None or behind[0]:
            return False
        await session.execute(sql.SQL("DROP SCHEMA IF EXISTS {away} CASCADE").format(**names))
        await session.execute(sql.SQL("ALTER SCHEMA {old} RENAME TO {away}").format(**names))
        await session.execute(sql.SQL("ALTER SCHEMA {new} RENAME TO {old}").format(**names))
        await session.execute(sql.SQL("DROP SCHEMA {away} CASCADE").format(**names))
    return True


async def _exists(session: Session, schema: str) -> bool:
    return bool((await session.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema])).rowcount)
