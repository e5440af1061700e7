"""Rows of the layout `storage`, and the statement that numbers and inserts them.

The sequence numbers of an aggregate have no gaps and no doubles: its counter row is locked from the first event of a
transaction until the commit, and a rollback takes the number back. One statement counts, inserts and writes the entry
of the WAL log. Aggregates are locked in their order, so that writers of several events do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from tailrace.errors import EventInvalid
from tailrace.outbox.layouts import ColumnMap
from tailrace.outbox.specs import AGGREGATE_ID, METADATA, SEQUENCE
from tailrace.outbox.writer.event import PreparedEvent
from tailrace.outbox.writer.requests import PARAMETER
from tailrace.outbox.writer.table import InsertPlan, Table, cast_text, checks_of, plan_insert
from tailrace.sql_names import beside, quote, quote_table

FIELD = "metadata"
"""The field of a value that the connector writes."""


def storage_row(event: PreparedEvent, columns: ColumnMap) -> dict[str, Any]:
    """Returns the row of an event without its number, which the statement finds."""
    payload = event.payload
    if payload is None or not payload.lstrip().startswith(b"{"):
        raise EventInvalid(
            "the payload is not an object",
            why="The connector puts the event's metadata into it.",
            remedy="Write an object; a tombstone is not possible in this layout.",
        )
    if b'"metadata"' in payload and FIELD in orjson.loads(payload):
        raise EventInvalid(
            f"the payload has a field {FIELD!r}",
            why="The connector writes the event's metadata under this name.",
            remedy="Rename the field, or give its content as the event's metadata.",
        )
    if not event.topic:
        raise EventInvalid(
            "the event names no topic",
            why="Each row of this layout names its topic.",
            remedy="Give Outbox(topic=…), or add(…, topic=…).",
        )
    trace = {"traceparent": event.traceparent, "tracestate": event.tracestate, "event_version": event.version}
    return {
        columns.id: event.id,
        AGGREGATE_ID: event.aggregate_id,
        columns.aggregate or "aggregate_type": event.aggregate,
        columns.type: event.type,
        columns.payload: payload,
        METADATA: {name: value for name, value in trace.items() if value is not None},
        columns.stream or "target_topic": event.topic,
        columns.key: event.key,
    }


def storage_columns(event: PreparedEvent, columns: ColumnMap) -> dict[str, Any]:
    """Returns what the writer fills in if the table has it."""
    return {columns.timestamp or "created_at": event.time, "aggregate_version": event.aggregate_version}


def plan_storage_insert(
    name: str, table: Table, columns: Iterable[str], *, id_column: str, many: bool, skip_existing: bool
) -> InsertPlan:
    """Returns the statement for rows of these columns, for one event or several."""
    columns = tuple(columns)
    if SEQUENCE in columns:  # the service gives the number itself, such as that of a replayed event
        return plan_insert(name, table, columns, id_column=id_column, many=many, skip_existing=skip_existing)
    counters, wal = beside(name, "_counters"), beside(name, "_wal")
    outbox = quote_table(name)
    arrays = ", ".join(f"CAST({PARAMETER} AS text[])" for _ in columns)
    aliases = ", ".join(f"c{number}" for number in range(len(columns)))
    values = ", ".join(
        f"{cast_text(f'r.c{number}', table[column])} AS {quote(column)}" for number, column in enumerate(columns)
    )
    listed = ", ".join(quote(column) for column in columns)
    same = "(w.aggregate_type, w.aggregate_id)"
    sql = f"""\
WITH given AS (SELECT r.at, {values} FROM unnest({arrays}) WITH ORDINALITY AS r({aliases}, at)),
wanted AS (SELECT aggregate_type, aggregate_id, count(*) AS events FROM given GROUP BY 1, 2),
counted AS (
    INSERT INTO {counters} AS c (aggregate_type, aggregate_id, last_sequence)
    SELECT w.aggregate_type, w.aggregate_id, w.events + coalesce((
        SELECT max(o.{SEQUENCE}) FROM {outbox} o WHERE (o.aggregate_type, o.aggregate_id) = {same}), 0)
    FROM wanted w ORDER BY 1, 2
    ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET last_sequence = c.last_sequence + (
        SELECT w.events FROM wanted w WHERE {same} = (c.aggregate_type, c.aggregate_id))
    RETURNING c.aggregate_type, c.aggregate_id, c.last_sequence),
logged AS (
    INSERT INTO {wal} (wal_id, outbox_id, operation_type, wal_lsn, transaction_id)
    SELECT 'wal_' || gen_random_uuid(), {quote(id_column)}, 'insert', pg_current_wal_insert_lsn(),
        CAST(pg_current_xact_id() AS text) FROM given)
INSERT INTO {outbox} ({listed}, {SEQUENCE})
SELECT {listed}, n.last_sequence - w.events
    + row_number() OVER (PARTITION BY g.aggregate_type, g.aggregate_id ORDER BY at)
FROM given g JOIN counted n USING (aggregate_type, aggregate_id) JOIN wanted w USING (aggregate_type, aggregate_id)
ORDER BY at"""  # noqa: S608 - names are quoted
    return InsertPlan(sql, columns, *checks_of(table, columns), many=True)
