"""Reads and updates documents for delivery marks: what the driver is needed for.

Documents that were inserted since the last mark are found in the oplog, exactly. If it no longer reaches back, and
after a first read, they are found in the collection, in a snapshot that the pipeline has passed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from bson import Binary, Int64, ObjectId, Timestamp
from pymongo import UpdateMany, UpdateOne

from tailrace.errors import HistoryLost
from tailrace.positions.mongo import ClusterTime
from tailrace.sources.mongo.change_stream import ChangeStreamCursor
from tailrace.sources.mongo.client import Client, translated_errors
from tailrace.sources.mongo.decoding import all_decoded
from tailrace.sources.mongo.documents import CODEC, Document, created_ms, field_text
from tailrace.sources.mongo.options import Stage, StreamSpec

DOING = "looking for documents without a delivery mark"
WAIT_MS = 200
PAGE = 1000
_object_id = re.compile("[0-9a-f]{24}").fullmatch
_uuid = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch
_number = re.compile("-?[0-9]{1,18}").fullmatch


class Found(NamedTuple):
    """A document: its collection, its `_id`, and the id of its event as text."""

    collection: str
    key: object
    event_id: str


def values_of(text: str) -> list[object]:
    """Returns the values of a field that are published as this text."""
    values: list[object] = [text]
    if _object_id(text):
        values.append(ObjectId(text))
    elif _uuid(text):
        values.append(Binary.from_uuid(UUID(text)))
    elif _number(text):
        values.append(Int64(text))
    return values


def inserted(
    client: Client, watched: StreamSpec, since: ClusterTime, until: ClusterTime, id_field: str
) -> Iterator[list[Found]]:
    """Yields the documents inserted from `since` to `until`; raises HistoryLost if the oplog does not reach back."""
    start = {"startAtOperationTime": Timestamp(since.seconds, since.increment)}
    wanted: Stage = {"operationType": "insert", "ns.coll": {"$in": list(watched.collections)}}
    shown = {"ns": 1, "documentKey": 1, f"fullDocument.{id_field}": 1, "clusterTime": 1}
    cursor = ChangeStreamCursor(client, watched, [{"$changeStream": start}, {"$match": wanted}, {"$project": shown}])
    try:
        for batch in cursor.until(until, DOING, wait_ms=WAIT_MS):
            changes = all_decoded(batch.changes)
            # The batch may reach beyond `until`.
            yield [
                _found(each["ns"]["coll"], each["documentKey"], each.get("fullDocument", {}), id_field)
                for each in changes
                if (each["clusterTime"].time, each["clusterTime"].inc) <= until.pair
            ]
            if batch.ended:
                raise HistoryLost("the collection was dropped or renamed", remedy="The collection itself is read.")
    finally:
        cursor.close()


def unmarked(
    client: Client, database: str, collection: str, at: ClusterTime, wanted: Document, id_field: str
) -> Iterator[list[tuple[Found, Document]]]:
    """Yields the documents of a snapshot that match `wanted`, in pages, each with the fields that were read."""
    session = client.start_session(causal_consistency=False)
    command: Document = {
        "find": collection,
        "filter": wanted,
        "batchSize": PAGE,
        "projection": {"payload": 0},
        "readConcern": {"level": "snapshot", "atClusterTime": Timestamp(at.seconds, at.increment)},
    }
    part = "firstBatch"
    try:
        while command:
            with translated_errors(DOING):
                cursor: Any = client[database].command(command, session=session, codec_options=CODEC)["cursor"]
            yield [(_found(collection, each, each, id_field), each) for each in cursor[part]]
            part = "nextBatch"
            command = (
                {"getMore": Int64(cursor["id"]), "collection": collection, "batchSize": PAGE} if cursor["id"] else {}
            )
    finally:
        session.end_session()


def created_before(document: Document, timestamp: str | None, at_ms: int) -> bool:
    """Whether a document says that it was created before this time."""
    created = created_ms(document, timestamp)
    return created is not None and created < at_ms


def update(client: Client, database: str, collections: Sequence[str], updates: Sequence[tuple[Document, Any]]) -> None:
    """Runs these updates (filter, aggregation) on each of the collections."""
    with translated_errors("writing delivery marks"):
        for name in collections:
            client[database][name].bulk_write([UpdateMany(*each) for each in updates], ordered=False)


def save(client: Client, database: str, collection: str, documents: Sequence[Document]) -> None:
    """Writes documents by their `_id`; others stay."""
    with translated_errors("writing delivery marks"):
        client[database][collection].bulk_write(
            [UpdateOne({"_id": each["_id"]}, {"$set": each}, upsert=True) for each in documents], ordered=False
        )


def guarded(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - the result of any call
    """Runs a call of the driver and translates its errors."""
    with translated_errors("reading or writing delivery marks"):
        return call()


def _found(collection: str, keyed: Document, document: Document, id_field: str) -> Found:
    key = keyed["_id"]
    given = key if id_field == "_id" else document.get(id_field)
    return Found(collection, key, "" if given is None else field_text(given).decode(errors="replace"))
