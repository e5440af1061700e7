"""One transaction of the Postgres store: markers, versions, waiting events and the next offset.

The first statement marks the partition's row as unfinished; the last one removes that mark and fails if it is gone. So
the transaction that commits is the one that was started, even if a handler ended it in between.

Rows are written in the order of their keys, so two workers that write the same rows wait for each other instead of
deadlocking.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping, Sequence

from psycopg import sql
from psycopg.errors import UndefinedTable
from psycopg.rows import TupleRow

from tailrace.errors import ProjectionError, StoreUnavailable
from tailrace.projections.core.store import EntityState, EventOutcome, Marker, Partition, WaitingEvent
from tailrace.projections.postgres.ddl import UNFINISHED
from tailrace.projections.postgres.effects import PostgresEffects
from tailrace.projections.postgres.session import Session, transaction_ended
from tailrace.projections.postgres.values import array, binary, numbers

_POSITION = f"""
    UPDATE tailrace_offsets SET unfinished = {UNFINISHED} WHERE projection = %s AND topic = %s AND partition = %s
    RETURNING next_offset, current_schema()
"""  # noqa: S608 - contains no values
# Inserts the row if missing. A second worker waits for the first, and then reads what it stored.
_FIRST_POSITION = f"""
    INSERT INTO tailrace_offsets (projection, topic, partition, unfinished) VALUES (%s, %s, %s, {UNFINISHED})
    ON CONFLICT (projection, topic, partition) DO UPDATE SET unfinished = EXCLUDED.unfinished
    RETURNING next_offset, current_schema()
"""  # noqa: S608
_FINISH = """
    UPDATE tailrace_offsets
    SET unfinished = NULL, next_offset = coalesce(%(offset)s::bigint, next_offset),
        furthest = greatest(furthest, %(offset)s::bigint), updated_at = now()
    WHERE projection = %(name)s AND topic = %(topic)s AND partition = %(number)s AND unfinished IS NOT NULL
"""
_MARK = """
    INSERT INTO tailrace_markers AS known (projection, event_id, entity, version, time_ms, outcome)
    SELECT %s, u.*, 'applied' FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[]) AS u
    ON CONFLICT (projection, event_id) DO UPDATE
    SET outcome = 'applied', entity = EXCLUDED.entity, version = EXCLUDED.version, time_ms = EXCLUDED.time_ms,
        processed_at = now()
    WHERE known.outcome = 'dead'
    RETURNING event_id
"""
_SETTLE = """
    UPDATE tailrace_markers AS known SET outcome = u.outcome
    FROM unnest(%s::text[], %s::text[]) AS u(event_id, outcome)
    WHERE known.projection = %s AND known.event_id = u.event_id
"""
NO_VERSION = -(2**63)
"""The version of an entity that only has waiting events: its row is there to be locked."""
# Events of an entity may be in two partitions, if partitions were added: then one of two writers waits here.
_ENTITIES = """
    SELECT entity, version, deleted FROM tailrace_entities WHERE projection = %s AND entity = ANY(%s::text[])
    ORDER BY entity FOR UPDATE
"""
_SAVE_ENTITIES = """
    INSERT INTO tailrace_entities AS known (projection, entity, version, deleted)
    SELECT %s, u.* FROM unnest(%s::text[], %s::bigint[], %s::boolean[]) AS u
    ON CONFLICT (projection, entity) DO UPDATE SET version = EXCLUDED.version, deleted = EXCLUDED.deleted
    WHERE known.version <= EXCLUDED.version AND known.entity <> ALL (%s::text[])
"""
_EXPECT_ENTITIES = """
    INSERT INTO tailrace_entities (projection, entity, version, deleted) SELECT %s, u.*, %s, false
    FROM unnest(%s::text[]) AS u ON CONFLICT (projection, entity) DO NOTHING
"""
_WAITING = 'event_id, entity, version, topic, partition, "offset", key, value, headers, time_ms, since_ms'
_WAIT = f"""
    INSERT INTO tailrace_waiting (projection, {_WAITING})
    SELECT %s, u.* FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::text[], %s::integer[], %s::bigint[],
                               %s::bytea[], %s::bytea[], %s::json[], %s::bigint[], %s::bigint[]) AS u
    ON CONFLICT (projection, event_id) DO NOTHING
"""  # noqa: S608 - no value in it
_WAITING_FOR = f"""
    SELECT {_WAITING} FROM tailrace_waiting WHERE projection = %s AND entity = ANY(%s::text[])
    ORDER BY entity COLLATE "C", version
"""  # noqa: S608
_EXPIRED = f"""
    SELECT {_WAITING} FROM tailrace_waiting
    WHERE projection = %s AND topic = %s AND partition = %s AND since_ms < %s ORDER BY since_ms, "offset" LIMIT %s
"""  # noqa: S608
_RELEASE = "DELETE FROM tailrace_waiting WHERE projection = %s AND event_id = ANY(%s::text[])"
_OFFSETS = "SELECT topic, partition, {column} FROM {table} WHERE projection = %s AND {column} IS NOT NULL"
_HORIZON = "SELECT horizon_ms FROM tailrace_horizon WHERE projection = %s"


class PostgresTransaction:
    """A transaction for events of one partition of the projection `name`; `schema` may be empty."""

    def __init__(
        self, session: Session, name: str, partition: Partition, effects: PostgresEffects, schema: str
    ) -> None:
        self._session = session
        self._name = name
        self._schema = schema
        self._partition = partition
        self._effects = effects
        self._is_locked = False
        self._next: int | None = None
        self._unlocked: set[str] = set()
        """Entities that were loaded and have no row yet."""

    @property
    def effects(self) -> PostgresEffects:
        return self._effects

    async def position(self) -> int | None:
        key = [self._name, *self._partition]
        try:
            found = await self._rows(_POSITION, key) or await self._rows(_FIRST_POSITION, key)
        except UndefinedTable:
            raise self._schema_gone() from None
        self._is_locked = True
        [(offset, schema)] = found
        if self._schema and schema != self._schema:
            # Otherwise tables of the same name in another schema would be written.
            raise self._schema_gone()
        stored: int | None = offset
        return stored if self._next is None else self._next

    def _schema_gone(self) -> ProjectionError:
        return ProjectionError(
            f"the tables of {self._name} in {self._schema or 'its schema'} are gone",
            why="They were dropped or renamed; the tables of a rebuild are renamed by the swap.",
            remedy="Restart the worker: it creates missing tables, and then starts from the beginning.",
        )

    async def advance(self, offset: int) -> None:
        """Sets the offset that `finish` stores."""
        if not self._is_locked:
            await self.position()
        self._next = offset

    async def finish(self) -> None:
        """Runs the last statement; raises if this is not the transaction in which `position` was called."""
        if not self._is_locked:
            return
        topic, number = self._partition
        given = {"name": self._name, "topic": topic, "number": number, "offset": self._next}
        if not (await self._session.execute(_FINISH, given)).rowcount:
            raise transaction_ended()

    async def mark(self, markers: Sequence[Marker]) -> set[str]:
        once = {marker.event_id: marker for marker in reversed(markers)}
        if not once:
            return set()
        ids, entities, versions, times = zip(*[once[each] for each in sorted(once)], strict=True)
        columns = [array(ids), array(entities), numbers(versions), numbers(times)]
        return {row[0] for row in await self._rows(_MARK, [self._name, *columns])}

    async def set_outcomes(self, outcomes: Mapping[str, EventOutcome]) -> None:
        if outcomes:
            await self._session.execute(_SETTLE, [array([*outcomes]), array([*outcomes.values()]), self._name])

    async def entities(self, names: Collection[str]) -> dict[str, EntityState]:
        if not names:
            return {}
        found = await self._rows(_ENTITIES, [self._name, array([*names])])
        self._unlocked = self._unlocked.union(names).difference(row[0] for row in found)
        return {entity: EntityState(version, deleted) for entity, version, deleted in found if version > NO_VERSION}

    async def save_entities(self, states: Mapping[str, EntityState]) -> None:
        if not states:
            return
        names = sorted(states)
        columns = [
            array(names),
            numbers([states[name].version for name in names]),
            array(["t" if states[name].deleted else "f" for name in names]),
        ]
        saved = await self._session.execute(_SAVE_ENTITIES, [self._name, *columns, array([*self._unlocked])])
        _require_all(saved.rowcount, names)
        self._unlocked.difference_update(names)

    async def wait(self, events: Sequence[WaitingEvent]) -> None:
        if not events:
            return
        expected = sorted({event.entity for event in events} & self._unlocked)
        if expected:
            made = await self._session.execute(_EXPECT_ENTITIES, [self._name, NO_VERSION, array(expected)])
            _require_all(made.rowcount, expected)
            self._unlocked.difference_update(expected)
        events = sorted(events, key=lambda event: event.event_id)
        columns = [
            array([event.event_id for event in events]),
            array([event.entity for event in events]),
            numbers([event.version for event in events]),
            array([event.partition.topic for event in events]),
            numbers([event.partition.number for event in events]),
            numbers([event.offset for event in events]),
            array([binary(event.key) for event in events]),
            array([binary(event.value) for event in events]),
            array([_headers_text(event.headers) for event in events]),
            numbers([event.time_ms for event in events]),
            numbers([event.since_ms for event in events]),
        ]
        await self._session.execute(_WAIT, [self._name, *columns])

    async def waiting(self, names: Collection[str]) -> list[WaitingEvent]:
        if not names:
            return []
        return [_waiting(*row) for row in await self._rows(_WAITING_FOR, [self._name, array([*names])])]

    async def expired(self, before_ms: int, limit: int) -> list[WaitingEvent]:
        rows = await self._rows(_EXPIRED, [self._name, *self._partition, before_ms, limit])
        return [_waiting(*row) for row in rows]

    async def release(self, event_ids: Collection[str]) -> None:
        if event_ids:
            await self._session.execute(_RELEASE, [self._name, array([*event_ids])])

    async def horizon(self) -> int:
        return await horizon_of(self._session, self._name)

    async def flush(self) -> None:
        await self._effects.flush()

    async def _rows(self, query: str, params: Sequence[object]) -> list[TupleRow]:
        return await (await self._session.execute(query.encode(), params)).fetchall()


def _require_all(written: int, names: Sequence[str]) -> None:
    """Raises if another transaction has inserted an entity that had no row to lock before."""
    if written < len(names):
        raise StoreUnavailable(
            "another partition has written the same entity at the same time", remedy="Tailrace retries automatically."
        )


async def stored_offsets(
    session: Session, name: str, *, column: str = "next_offset", schema: str = ""
) -> dict[Partition, int]:
    """Returns `column` of each partition that has it; `furthest` is the highest next offset it ever had."""
    table = sql.Identifier(*filter(None, [schema]), "tailrace_offsets")
    query = sql.SQL(_OFFSETS).format(table=table, column=sql.Identifier(column))
    rows = await (await session.execute(query, [name])).fetchall()
    return {Partition(topic, number): offset for topic, number, offset in rows}


async def horizon_of(session: Session, name: str) -> int:
    row = await (await session.execute(_HORIZON, [name])).fetchone()
    return 0 if row is None else int(row[0])


# The type json keeps the text as it is; jsonb would refuse a NUL.
def _headers_text(headers: Sequence[tuple[str, bytes]]) -> str:
    return json.dumps([[name, base64.b64encode(value).decode()] for name, value in headers])


def _waiting(
    event_id: str, entity: str, version: int, topic: str, partition: int, offset: int, key: bytes | None,
    value: bytes | None, headers: list[list[str]], time_ms: int, since_ms: int,
) -> WaitingEvent:  # fmt: skip
    decoded = [(name, base64.b64decode(text)) for name, text in headers]
    source = Partition(topic, partition)
    return WaitingEvent(event_id, entity, version, source, offset, key, value, decoded, time_ms, since_ms)
