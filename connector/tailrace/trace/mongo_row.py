"""Finds the document of one event in the collections of an outbox."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from bson import Int64, ObjectId
from bson.binary import Binary
from pymongo.read_concern import ReadConcern

from tailrace.outbox.layouts import ColumnMap
from tailrace.sources.mongo.client import connect, identify, translated_errors
from tailrace.sources.mongo.decoding import decoded
from tailrace.sources.mongo.documents import DocumentConverter, created_ms, field_text
from tailrace.sources.mongo.options import MongoOptions
from tailrace.trace.outbox_row import FoundRow


def find_document(options: MongoOptions, columns: ColumnMap, event_id: str, marks: tuple[str, ...]) -> FoundRow | None:
    with connect(options.uri, app_name=f"{options.app_name} (trace)", timeout=options.link_timeout) as client:
        database = client.get_database(options.database, read_concern=ReadConcern("majority"))
        for name in options.collections:
            with translated_errors("searching the outbox collection"):
                found: Any = database[name].find_raw_batches({columns.id: {"$in": _ids(event_id)}}).limit(1)
                document = next((decoded(raw) for raw in found if raw), None)
            if document is not None:
                when = created_ms(document, options.timestamp)
                return FoundRow(
                    DocumentConverter.of(options).row(document, "", when or 0),
                    f"{options.database}.{name}",
                    when,
                    None,
                    {mark: _shown(document[mark]) for mark in marks if mark in document},
                    identify(client).now,
                )
    return None


def _ids(event_id: str) -> list[object]:
    """Returns the values that have this text as the id of an event."""
    found: list[object] = [event_id]
    if ObjectId.is_valid(event_id) and len(event_id) == 24:
        found.append(ObjectId(event_id))
    if event_id.isascii() and event_id.removeprefix("-").isdigit() and len(event_id) < 19:
        found.append(Int64(event_id))
    try:
        found.append(Binary.from_uuid(UUID(event_id)))
    except ValueError:
        pass  # not a UUID
    return found


def _shown(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return field_text(value).decode(errors="replace")
