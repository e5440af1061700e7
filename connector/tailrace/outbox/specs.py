"""The named layouts: which columns each has, what they mean for an event, and which are only about delivery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tailrace.outbox.layouts import DEBEZIUM, DOCUMENT, INTEGER_TYPES, JSON_TYPES, ColumnMap, Layout
from tailrace.schema_versions import FIRST_VERSION

METADATA = "event_metadata"
SEQUENCE = "sequence_number"
AGGREGATE_ID = "aggregate_id"
"""Columns of the storage layout that records use under these names."""


class TableColumn(NamedTuple):
    """A column of a layout's table in Postgres. `about_delivery`: it is never part of the event."""

    name: str
    type: str
    rest: str = ""
    about_delivery: bool = False

    @property
    def definition(self) -> str:
        return f"{self.type} {self.rest}".rstrip()


@dataclass(frozen=True, slots=True)
class LayoutSpec:
    """A named layout. `table` is empty for a layout whose table follows the column map."""

    columns: ColumnMap
    table: tuple[TableColumn, ...] = ()
    ignored: frozenset[str] = frozenset()
    """Columns that are not part of the event: a publisher, or a database, keeps them for itself."""
    needed: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Further columns that records are made of, with the types they may have; empty for any type."""
    no_version: str | None = None
    """The schema version of an event that names none; None is the latest."""
    databases: tuple[str, ...] = ("postgres",)
    """The databases it is for, the usual one first."""
    template: str | None = None
    """The topic of events if no routing rules are configured; None is the general default."""
    has_metadata: bool = False
    """Whether the value of a record is the payload with the event's metadata inside."""


def _delivery(name: str, type: str, rest: str = "") -> TableColumn:
    return TableColumn(name, type, rest, about_delivery=True)


_DOCUMENT = (
    TableColumn("event_id", "text", "PRIMARY KEY"),
    TableColumn("event_type", "text", "NOT NULL"),
    TableColumn("entity_type", "text", "NOT NULL"),
    TableColumn("entity_id", "text", "NOT NULL"),
    TableColumn("entity_version", "bigint", "NOT NULL"),
    TableColumn("topic", "text", "NOT NULL"),
    TableColumn("partition_key", "text", "NOT NULL"),
    TableColumn("payload", "jsonb"),
    TableColumn("created_at", "timestamptz", "NOT NULL DEFAULT now()"),
    _delivery(
        "status",
        "text",
        "NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'processing', 'published', 'failed'))",
    ),
    _delivery("retry_count", "integer", "NOT NULL DEFAULT 0"),
    _delivery("max_retries", "integer", "NOT NULL DEFAULT 5"),
    _delivery("last_error", "text"),
    _delivery("last_error_at", "timestamptz"),
    _delivery("processing_started_at", "timestamptz"),
    _delivery("published_at", "timestamptz"),
    _delivery("locked_by", "text"),
    _delivery("locked_until", "timestamptz"),
)

_STREAMS = (
    TableColumn("id", "text", "PRIMARY KEY"),
    TableColumn("stream", "text", "NOT NULL"),
    TableColumn("topic", "text", "NOT NULL"),
    TableColumn("payload", "jsonb", "NOT NULL"),
    TableColumn("created_at", "timestamptz", "DEFAULT now()"),
    _delivery("processed", "boolean", "DEFAULT false"),
    _delivery("processed_at", "timestamptz"),
    _delivery("error", "text"),
)

_STORAGE = (
    TableColumn("outbox_id", "varchar(64)", "PRIMARY KEY"),
    TableColumn(AGGREGATE_ID, "varchar(255)", "NOT NULL"),
    TableColumn("aggregate_type", "varchar(50)", "NOT NULL"),
    TableColumn("event_type", "varchar(100)", "NOT NULL"),
    TableColumn("event_payload", "jsonb", "NOT NULL"),
    TableColumn(METADATA, "jsonb", "NOT NULL DEFAULT '{}'"),
    TableColumn(SEQUENCE, "bigint", "NOT NULL"),
    TableColumn("created_at", "timestamptz", "NOT NULL DEFAULT now()"),
    _delivery("delivery_attempts", "integer", "NOT NULL DEFAULT 0"),
    _delivery(
        "delivery_status",
        "varchar(20)",
        "NOT NULL DEFAULT 'pending'\n"
        "        CHECK (delivery_status IN ('pending', 'processing', 'delivered', 'failed', 'dlq'))",
    ),
    _delivery("first_attempt_at", "timestamptz"),
    _delivery("last_attempt_at", "timestamptz"),
    _delivery("next_retry_at", "timestamptz"),
    _delivery("delivered_at", "timestamptz"),
    TableColumn("target_topic", "varchar(255)", "NOT NULL"),
    TableColumn("partition_key", "varchar(255)"),
    _delivery("max_attempts", "integer", "NOT NULL DEFAULT 5 CHECK (max_attempts > 0)"),
    _delivery("base_delay_ms", "integer", "NOT NULL DEFAULT 1000 CHECK (base_delay_ms > 0)"),
    _delivery("max_delay_ms", "integer", "NOT NULL DEFAULT 60000 CHECK (max_delay_ms >= base_delay_ms)"),
    _delivery("backoff_multiplier", "numeric(3,2)", "NOT NULL DEFAULT 2.0"),
)

STREAMS = ColumnMap(
    id="id",
    type="topic",
    aggregate=None,
    key="stream",
    payload="payload",
    timestamp="created_at",
    subject="topic",
    stream="stream",
)
STORAGE = ColumnMap(
    id="outbox_id",
    type="event_type",
    aggregate="aggregate_type",
    key="partition_key",
    payload="event_payload",
    version=f"{METADATA}#/event_version",
    timestamp="created_at",
    stream="target_topic",
)


def _about_delivery(table: tuple[TableColumn, ...]) -> frozenset[str]:
    return frozenset(column.name for column in table if column.about_delivery)


LAYOUTS = {
    "debezium": LayoutSpec(DEBEZIUM, databases=("postgres", "mongo")),
    "document": LayoutSpec(
        DOCUMENT, _DOCUMENT, ignored=_about_delivery(_DOCUMENT) | {"_id"}, databases=("mongo", "postgres")
    ),
    "streams": LayoutSpec(STREAMS, _STREAMS, ignored=_about_delivery(_STREAMS), template="{stream}"),
    "storage": LayoutSpec(
        STORAGE,
        _STORAGE,
        ignored=_about_delivery(_STORAGE),
        needed={METADATA: JSON_TYPES, "event_payload": JSON_TYPES, SEQUENCE: INTEGER_TYPES, AGGREGATE_ID: {}},
        no_version=FIRST_VERSION,
        template="{stream}",
        has_metadata=True,
    ),
}


def layout_map(layout: str, database: str) -> ColumnMap:
    """Returns the map of a named layout. In MongoDB, the Debezium layout uses `_id` as the id."""
    columns = LAYOUTS[layout].columns
    return replace(columns, id="_id") if (layout, database) == ("debezium", "mongo") else columns


def reader(layout: str, columns: ColumnMap, ignored: frozenset[str] | None = None) -> Layout:
    """Returns the Layout that reads rows of a named layout with these columns.

    `ignored` are the columns that are not part of the event; by default those of the layout.
    """
    spec = LAYOUTS[layout]
    if ignored is None:
        ignored = spec.ignored - {column for _, column in columns.parts()}
    return Layout(columns, ignored=ignored, needed=needed_columns(layout, columns), no_version=spec.no_version)


def needed_columns(layout: str, columns: ColumnMap) -> dict[str, Mapping[int, str]]:
    """Returns the columns that records of this layout are made of, with the types they may have."""
    spec = LAYOUTS[layout]
    return {columns.payload if name == spec.columns.payload else name: types for name, types in spec.needed.items()}


def event_columns(layout: str, columns: ColumnMap) -> frozenset[str]:
    """Returns all columns that an event and its record are made of."""
    return frozenset(column for _, column in columns.parts()) | needed_columns(layout, columns).keys()
