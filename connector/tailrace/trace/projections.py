"""Finds out which projections have applied an event, from the markers and offsets in their stores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tailrace.errors import ConfigError, LayoutMismatch
from tailrace.sources.postgres.connection import PgConnection
from tailrace.sql_names import quote
from tailrace.trace.kafka_search import FoundRecord

TIMEOUT = 10.0
MARKERS, OFFSETS = "tailrace_markers", "tailrace_offsets"


@dataclass(frozen=True, slots=True)
class MarkerStore:
    """The database of projections. `name` is shown; `place` is the schema, or the database of MongoDB."""

    name: str
    address: str
    place: str

    @property
    def is_mongo(self) -> bool:
        return self.address.startswith(("mongodb://", "mongodb+srv://"))


@dataclass(frozen=True, slots=True)
class FoundMarker:
    """What one projection did with the event. `outcome` is None without a marker; `passed` by its stored offset."""

    store: str
    projection: str
    outcome: str | None
    processed_at: str | None
    entity: str | None
    version: int | None
    passed: bool


def parse_store(text: str) -> MarkerStore:
    """Reads the address of a store: `postgresql://host/database#schema`, or `mongodb://host/database`.

    A connection string of libpq in its other form, `host=… dbname=…#schema`, is read as well.
    """
    address, _, schema = text.partition("#")
    try:
        if address.startswith(("mongodb://", "mongodb+srv://")):
            parts = urlsplit(address)
            if database := parts.path.lstrip("/"):
                return MarkerStore(f"{parts.hostname}/{database}", address, database)
        elif "=" in address or address.startswith(("postgres://", "postgresql://")):
            given = conninfo_to_dict(address)
            name = f"{given.get('host', 'localhost')}/{given.get('dbname', '')}"
            return MarkerStore(f"{name}{f' {schema}' if schema else ''}", address, schema)
    except (ValueError, psycopg.Error):
        pass  # reported below, without the address: it may contain a password
    raise ConfigError(
        "--projection is neither an app nor the address of a store",
        remedy="Write module:app, postgresql://host/database#schema or mongodb://host/database.",
    )


def find_markers(store: MarkerStore, event_id: str, records: Sequence[FoundRecord]) -> list[FoundMarker]:
    """Returns what each projection of a store did with the event."""
    if store.is_mongo:
        from tailrace.trace.mongo_markers import find_in_mongo  # optional driver

        return find_in_mongo(store, event_id, records)
    return _find_in_postgres(store, event_id, records)


def _find_in_postgres(store: MarkerStore, event_id: str, records: Sequence[FoundRecord]) -> list[FoundMarker]:
    with PgConnection(store.address, replication=False, timeout=TIMEOUT) as link:
        if store.place:
            link.query(f"SET search_path TO {quote(store.place)}")
        ((exists,),) = link.query(
            f"SELECT to_regclass('{OFFSETS}') IS NOT NULL AND to_regclass('{MARKERS}') IS NOT NULL"
        )
        if exists != "t":
            raise no_store(store)
        passed: dict[str, list[tuple[str, int, int]]] = {}
        for name, topic, partition, offset in link.query(
            f"SELECT projection, topic, partition, coalesce(next_offset, 0) FROM {OFFSETS}"  # noqa: S608 - a constant
        ):
            passed.setdefault(str(name), []).append((str(topic), int(partition or 0), int(offset or 0)))
        # By projection, because the index begins with it.
        names = sorted(passed)
        found = {
            str(row[0]): row[1:]
            for row in link.query(
                "SELECT m.projection, m.outcome, to_json(m.processed_at) #>> '{}', m.entity, m.version "  # noqa: S608 - a constant
                f"FROM json_array_elements_text($1::json) AS p (name) JOIN {MARKERS} m "
                "ON m.projection = p.name AND m.event_id = $2",
                [json.dumps(names), event_id],
            )
        }
    markers: list[FoundMarker] = []
    for name in names:
        outcome, at, entity, version = found.get(name, (None, None, None, None))
        number = None if version is None else int(version)
        markers.append(FoundMarker(store.name, name, outcome, at, entity, number, has_passed(passed[name], records)))
    return markers


def has_passed(offsets: Sequence[tuple[str, int, int]], records: Sequence[FoundRecord]) -> bool:
    """Returns whether the stored offsets (topic, partition, next) are beyond a record of the event."""
    places = {(each.topic, each.partition): each.offset for each in reversed(records)}
    return any(next_offset > places.get((topic, number), next_offset) for topic, number, next_offset in offsets)


def no_store(store: MarkerStore) -> LayoutMismatch:
    return LayoutMismatch(
        f"{store.name} has no tables of projections",
        why="No projection has run there, or the schema is another one.",
        remedy="Add the schema: postgresql://host/database#schema.",
    )
