"""A ready-made projection: mirrors every event of a topic as a document of a MongoDB collection.

    archive = mirror(app, "shop.orders", store=MirrorStore("mongodb://localhost/?replicaSet=rs0", "archive", "orders"))

Documents are inserted unordered, many at once; an existing one counts as written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64

from tailrace.backoff import DEFAULT, Backoff
from tailrace.errors import Rejected
from tailrace.projections.core.decoding import decode_json
from tailrace.projections.core.event import Event
from tailrace.projections.faust.app import ProjectionApp
from tailrace.projections.mongo.client import Document
from tailrace.projections.mongo.mirror_store import MirrorEffects, MirrorStore
from tailrace.projections.projection import Projection

MakeDocument = Callable[[Event], Mapping[str, Any]]
BATCH = 100
FLUSH_SECONDS = 1.0
BEYOND = 2**63
"""BSON integers are smaller than this."""


def mirror(
    app: ProjectionApp,
    *topics: str,
    store: MirrorStore,
    name: str | None = None,
    document: MakeDocument | None = None,
    events: int = BATCH,
    within: float = FLUSH_SECONDS,
    backoff: Backoff = DEFAULT,
) -> Projection:
    """Creates a projection that keeps every event whole. `events` and `within` limit a batch.

    `document` makes another document of an event, whose payload is in `event.data` (None if it is no JSON). Its `_id`
    is the event's id, or depends only on the event: the first document with an `_id` stays.

    `backoff` are the delays while the database is away.
    """
    made = Projection(
        app,
        *topics,
        store=store,
        name=name,
        decode=mirror_decode,
        events=events,
        within=within,
        keep_markers=None,
        backoff=backoff,
    )
    made.on()(mirror_handler(document or mirror_document))
    return made


def mirror_handler(document: MakeDocument) -> Callable[[Event, MirrorEffects], Awaitable[None]]:
    """Returns a handler that inserts one document for each event."""

    async def insert(event: Event, effects: MirrorEffects) -> None:
        effects.insert({"_id": event.id, **document(event)})

    return insert


def mirror_decode(event: Event) -> Any:  # noqa: ANN401 - any JSON value
    """Returns the payload as JSON; None if it is not JSON: a mirror keeps such an event in `raw`."""
    try:
        return decode_json(event)
    except Rejected:
        return None


def mirror_document(event: Event) -> Document:
    """Returns the document of an event: `raw` is the unchanged value, `payload` is for queries."""
    return {
        "type": event.type,
        "key": event.key,
        "topic": event.partition.topic,
        "partition": event.partition.number,
        "offset": Int64(event.offset),
        "position": event.position,
        "event_time": DatetimeMS(event.time_ms),
        "arrived": datetime.now(UTC),
        "headers": [{"name": name, "value": value} for name, value in event.headers],
        "payload": _storable(event.data),
        "raw": event.value,
    }


def _storable(value: object) -> object:
    """Replaces integers that are too large for BSON by decimals."""
    if isinstance(value, dict):
        return {name: _storable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_storable(each) for each in value]
    if isinstance(value, int) and not -BEYOND <= value < BEYOND:
        return Decimal128(str(value))
    return value
