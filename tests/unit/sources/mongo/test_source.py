"""Tests of source.py: rows before the end of a stream are returned, even if the end is known already."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp

from tailrace.errors import CollectionGone, EventTooLarge, TailraceError
from tailrace.event import Chunk
from tailrace.positions.mongo import ClusterTime, StreamIdentity, TokenPosition
from tailrace.sources.mongo.change_stream import RawBatch
from tailrace.sources.mongo.changes import ChangeFollower
from tailrace.sources.mongo.documents import DocumentConverter
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.mongo.source import MongoSource
from tailrace.wakeup import Wakeup

START = TokenPosition(StreamIdentity("rs0", "shop", {}, "f"), {"_data": "80"}, ClusterTime(1, 0), 5)


class Script:
    """A stream with all batches available at once, followed by its error."""

    def __init__(self, *answers: list[dict[str, Any]] | TailraceError) -> None:
        self._answers = deque(answers)

    @property
    def waiting(self) -> bool:
        return bool(self._answers) and isinstance(self._answers[0], list)

    def take(self) -> RawBatch | None:
        answer = self._answers[0]
        if isinstance(answer, TailraceError):
            raise answer
        self._answers.popleft()
        return RawBatch(list(map(bson.encode, answer)), None, ended=False)


def change(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "_id": {"_data": f"82{number:08X}"},
        "operationType": "insert",
        "clusterTime": Timestamp(number, 1),
        "wallTime": datetime(2024, 1, 1, tzinfo=UTC),
        "fullDocument": {"_id": f"n{number}", "payload": {}},
        "ns": {"db": "shop", "coll": "outbox"},
        **fields,
    }


@pytest.fixture
def wakeup() -> Iterator[Wakeup]:
    made = Wakeup()
    yield made
    made.close()


def reading(wakeup: Wakeup, script: Script) -> MongoSource:
    options = MongoOptions("", "", "shop", ("outbox",), ("_id", "payload"), (), frozenset(), "payload")
    source = MongoSource(options, wakeup=wakeup)
    # As `open` leaves them; with a server, this order of events is rare.
    source._following = ChangeFollower(START, DocumentConverter(("_id", "payload"), (), "payload"))
    source._stream = script  # type: ignore[assignment]
    return source


def ids(chunk: Chunk) -> list[bytes | None]:
    return [row.values[0] for row in chunk.rows]


def test_rows_before_a_known_error_are_returned_first(wakeup: Wakeup) -> None:
    source = reading(wakeup, Script([change(2)], [change(3)], EventTooLarge("too large")))
    chunk = source.read(100, 1 << 20, 0)
    assert ids(chunk) == [b"n2", b"n3"]
    assert chunk.position.token == {"_data": "8200000003"}  # type: ignore[attr-defined]
    assert chunk.more, "the error is to be read at once"
    for _ in range(2):
        with pytest.raises(EventTooLarge):
            source.read(100, 1 << 20, 0)


def test_rows_before_the_end_of_the_collection_are_returned_first(wakeup: Wakeup) -> None:
    source = reading(wakeup, Script([change(2), change(3, operationType="drop"), change(4)]))
    assert ids(source.read(100, 1 << 20, 0)) == [b"n2"]
    for _ in range(2):
        with pytest.raises(CollectionGone):
            source.read(100, 1 << 20, 0)
