"""Adds events to an outbox collection in MongoDB, and finds out whether an event is published.

The connector writes nothing to MongoDB by default, so nothing there shows what is published. With row marks it sets a
field of the document, which a receipt can wait for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

from tailrace.errors import EventExists, EventInvalid, LayoutMismatch, NotCommitted, ReceiptUnavailable
from tailrace.outbox.layouts import ColumnMap
from tailrace.outbox.writer.event import PreparedEvent
from tailrace.outbox.writer.evidence import DEAD, DeliveryEvidence, dead_lettered
from tailrace.outbox.writer.polling import poll
from tailrace.outbox.writer.pressure import Pressure, mongo_pressure
from tailrace.outbox.writer.requests import CollectionExists, Find, InsertDocuments, Steps
from tailrace.outbox.writer.rows import RowLayout
from tailrace.schemas.strict_json import Json

DUPLICATE_KEY = 11000
MAX_INTEGER = 2**63 - 1
_long_number = re.compile(rb"[0-9]{19}").search


class MongoOutbox:
    """The steps of the writer for one collection, `database.collection`."""

    def __init__(self, name: str, layout: RowLayout, columns: ColumnMap) -> None:
        self._name = name
        self._layout = layout
        self._columns = columns
        self._is_known = False

    def add(self, events: Sequence[PreparedEvent], *, many: bool) -> Steps[int]:
        """Inserts the events with one command; returns how many were inserted."""
        documents = [self._document(event) for event in events]
        if not self._is_known:
            yield from self._require_collection()
        # An insert of an existing id would abort the transaction, so given ids are looked for by the same command.
        skip_existing = self._layout.repeatable and any(event.id_given for event in events)
        try:
            added: int = yield InsertDocuments(self._name, documents, self._columns.id if skip_existing else None)
        except Exception as error:
            if DUPLICATE_KEY in (getattr(error, "code", None), *_codes(error)):
                raise EventExists(
                    f"{self._name} has an event with this id already",
                    why="An id names one event. MongoDB has aborted the transaction.",
                    remedy="Let the writer make the id; or ask outbox.exists(session, id) first.",
                ) from error
            raise
        return added

    def _require_collection(self) -> Steps[None]:
        """Raises LayoutMismatch if there is no such collection: MongoDB would create it, and nobody would read it."""
        self._is_known = bool((yield CollectionExists(self._name)))
        if not self._is_known:
            raise LayoutMismatch(
                f"there is no collection {self._name}",
                why="MongoDB would create it, and the connector does not read it.",
                remedy="Correct Outbox(table=…), or create the collection (`tailrace init` writes the commands).",
            )

    def exists(self, event_id: str) -> Steps[bool]:
        found = yield Find(self._name, {self._columns.id: event_id}, [self._columns.id])
        return found is not None

    def wait(self, event_id: str, evidence: DeliveryEvidence, *, timeout: float | None) -> Steps[None]:
        """Returns when the event's document is marked as published. Raises ReceiptUnavailable without marks."""
        mark = self._layout.mark
        if evidence.marks != "rows" or mark is None:
            raise ReceiptUnavailable(
                "nothing in MongoDB shows whether the event is published",
                why="The connector writes nothing to the database, unless it marks delivered documents.",
                remedy='Turn row marks on for the pipeline (layout: document) and give Outbox(marks="rows").',
            )
        column, wanted = mark

        def check() -> Steps[str | None]:
            found = yield Find(self._name, {self._columns.id: event_id}, [column])
            if found is None:
                raise NotCommitted(
                    "the event is not in the outbox",
                    why="Its transaction is not committed yet, it was aborted, or the document was deleted since.",
                    remedy="Call wait() only after a commit, and keep documents until then.",
                )
            if found.get(column) == DEAD.get(column, ""):
                raise dead_lettered()
            return None if found.get(column) == wanted else f"its document is not marked by {column}: {wanted}"

        yield from poll(check, timeout)

    def pressure(self, evidence: DeliveryEvidence) -> Steps[Pressure]:
        return mongo_pressure(self._name, self._layout, self._columns, evidence)

    def _document(self, event: PreparedEvent) -> dict[str, Any]:
        document = self._layout.row(event, self._columns)
        for name, value in self._layout.optional(event, self._columns).items():
            if value is not None:
                document[name] = value
        document.update(event.extra)
        if event.payload is not None:
            document[self._columns.payload] = value = orjson.loads(event.payload)
            if not isinstance(value, dict | list):
                raise EventInvalid(
                    "a payload in MongoDB must be an object or an array",
                    why="The connector refuses a bare number or text, which it could not distinguish from text.",
                    remedy='Wrap it in an object, such as {"value": …}.',
                )
            if _long_number(event.payload) and _beyond_int64(value):
                raise EventInvalid(
                    "the payload contains an integer above 9223372036854775807",
                    why="BSON stores integers of 64 bits with a sign.",
                    remedy="Write the number as a string.",
                )
        return document


def _beyond_int64(value: Json) -> bool:
    if isinstance(value, int):
        return value > MAX_INTEGER
    if isinstance(value, dict):
        return any(map(_beyond_int64, value.values()))
    return isinstance(value, list) and any(map(_beyond_int64, value))


def _codes(error: Exception) -> list[int]:
    """Returns the codes of a bulk write's errors."""
    details = getattr(error, "details", None)
    found = details.get("writeErrors", ()) if isinstance(details, dict) else ()
    return [each.get("code") for each in found]
