"""The row of an event, by layout: which columns or fields it has, and their values.

To add a layout, add an entry to LAYOUTS. Values are of plain Python types; the JSON text of a payload is bytes. Drivers
convert them: to text for SQL, to BSON for MongoDB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from tailrace.errors import ConfigError, EventInvalid
from tailrace.outbox.layouts import DEBEZIUM, DOCUMENT, INSIDE, ColumnMap
from tailrace.outbox.specs import SEQUENCE, STORAGE, STREAMS
from tailrace.outbox.writer.event import PreparedEvent
from tailrace.outbox.writer.storage import plan_storage_insert, storage_columns, storage_row
from tailrace.outbox.writer.table import InsertPlan, plan_insert

CONTENT_TYPE = "application/json"

Row = dict[str, Any]


class RowLayout(NamedTuple):
    """How events are written in a layout.

    `row` returns the columns that every table has; a table without one of them is refused. `optional` returns further
    columns that are written if the table has them (in MongoDB, if they have a value); those in `given` were chosen by
    the service, so a table without one of them is refused if it has a value. If `repeatable`, a second write of an
    event id is success. `has_aggregate` says whether events must name their aggregate, `has_topic` whether rows have
    a column for a topic. `mark` is the column, and its value, by which a row (or the view of a watermark) is marked as
    published.
    """

    columns: Mapping[str, ColumnMap]
    row: Callable[[PreparedEvent, ColumnMap], Row]
    optional: Callable[[PreparedEvent, ColumnMap], Row]
    given: frozenset[str] = frozenset({"aggregate_version"})
    repeatable: bool = False
    has_aggregate: bool = True
    has_topic: bool = True
    mark: tuple[str, str] | None = None
    plan: Callable[..., InsertPlan] = plan_insert
    """Returns the INSERT statement."""
    counted: frozenset[str] = frozenset()
    """Columns that the statement fills in by itself."""


def debezium_row(event: PreparedEvent, columns: ColumnMap) -> Row:
    row = {
        columns.id: event.id,
        columns.aggregate or "aggregatetype": event.aggregate,
        columns.key: event.key,
        columns.type: event.type,
        columns.payload: event.payload,
    }
    if columns.stream:
        row[columns.stream] = event.topic
    return row


def common_columns(event: PreparedEvent, columns: ColumnMap) -> Row:
    """Returns what the writer fills in by itself. The connector sends these columns as headers."""
    return {
        columns.timestamp or "created_at": event.time,
        "traceparent": event.traceparent,
        "tracestate": event.tracestate,
        "content_type": CONTENT_TYPE if event.payload is not None else None,
        columns.version or "schema_version": event.version,
        "aggregate_version": event.aggregate_version,
    }


def document_row(event: PreparedEvent, columns: ColumnMap) -> Row:
    return {
        "entity_id": event.aggregate_id,
        columns.id: event.id,
        columns.type: event.type,
        columns.aggregate or "entity_type": event.aggregate,
        columns.key: event.key,
        columns.stream or "topic": event.topic,
        columns.payload: event.payload,
        columns.timestamp or "created_at": event.time,
    }


def document_columns(event: PreparedEvent, columns: ColumnMap) -> Row:
    """Returns the common columns and those of a polling publisher, as it expects them of a new row."""
    row = common_columns(event, columns)
    row["entity_version"] = row.pop("aggregate_version")
    del row[columns.timestamp or "created_at"]
    return {**row, "status": "pending", "retry_count": 0, "max_retries": 5}


def streams_row(event: PreparedEvent, columns: ColumnMap) -> Row:
    if not event.topic:
        raise EventInvalid(
            "the event names no stream",
            why="Each row of this layout names its stream.",
            remedy="Give Outbox(topic=…), or add(…, topic=…).",
        )
    return {
        columns.id: event.id,
        columns.stream or "stream": event.topic,
        columns.type: event.type,
        columns.payload: event.payload,
    }


LAYOUTS: dict[str, RowLayout] = {
    "debezium": RowLayout(
        columns={"postgres": DEBEZIUM, "mongo": replace(DEBEZIUM, id="_id")},
        row=debezium_row,
        optional=common_columns,
        has_topic=False,
        mark=("processed", "true"),
    ),
    "document": RowLayout(
        columns={"postgres": DOCUMENT, "mongo": DOCUMENT},
        row=document_row,
        optional=document_columns,
        given=frozenset({"entity_version"}),
        repeatable=True,
        mark=("status", "published"),
    ),
    "streams": RowLayout(
        columns={"postgres": STREAMS},
        row=streams_row,
        optional=common_columns,
        has_aggregate=False,
        mark=("processed", "true"),
    ),
    "storage": RowLayout(
        columns={"postgres": STORAGE},
        row=storage_row,
        optional=storage_columns,
        mark=("delivery_status", "delivered"),
        plan=plan_storage_insert,
        counted=frozenset({SEQUENCE}),
    ),
}


def layout_named(name: str) -> RowLayout:
    try:
        return LAYOUTS[name]
    except KeyError:
        raise ConfigError(
            f"{name!r} is not a layout that the writer knows",
            why=f"It knows {', '.join(sorted(LAYOUTS))}.",
            remedy="Give the layout of the pipeline's settings (outbox.layout).",
        ) from None


def column_map(layout: RowLayout, database: str, own: Mapping[str, str]) -> ColumnMap:
    """Returns the layout's columns with the service's own names for some of them, as in `outbox.columns`."""
    if database not in layout.columns:
        raise ConfigError(
            f"this layout is not for {database}",
            why=f"It is for {', '.join(layout.columns)}.",
            remedy="Choose another layout, or give a connection to the other database.",
        )
    base = layout.columns[database]
    parts = [field.name for field in fields(base)]
    for part, name in own.items():
        if part not in parts or INSIDE in name:
            raise ConfigError(
                f"columns: {part}={name!r} is not possible",
                why=f"The parts are {', '.join(parts)}; the writer fills whole columns, not paths in them.",
                remedy="Name a column of the table for one of these parts.",
            )
    return replace(base, **own)
