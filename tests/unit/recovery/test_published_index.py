"""The index stores every payload published under an id, and only certain differences count."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.event import OutboxEvent, Route
from tailrace.pipeline.processor import EventProcessor
from tailrace.records.formats import RecordFormat, record_maker
from tailrace.recovery.id_index import IdIndex, PublishedRecord
from tailrace.recovery.published_index import CertainFingerprinter
from tailrace.schema_versions import Version
from tailrace.schemas.compiled import RegistryIds
from tailrace.schemas.json_schema import CompiledJsonSchema
from tailrace.verify.findings import AGAIN, DEAD_LETTERS, EDITED, ORDER, PUBLISHED, WAITING
from tailrace.verify.fingerprints import UNCOMPARED
from tailrace.verify.kafka_records import RecordOrigin

SCHEMA = CompiledJsonSchema.compile(
    "OrderPlaced", Version(1), {}, "schemas/OrderPlaced/1.json", registered=RegistryIds(7, None)
)
FORMATS = [
    RecordFormat(),
    RecordFormat(schema_id="prefix"),
    RecordFormat(schema_id="header"),
    RecordFormat(cloudevents="structured", source="/shop"),
]
OWN = RecordOrigin(b"shop", "orders", b"k", b"OrderPlaced", b"0/1:1")
EVENT = OutboxEvent("e-1", "OrderPlaced", "order", b"k", b'{"n":1}', None, "0/1:1", 1000, [])


def test_all_payloads_of_an_id_are_kept() -> None:
    ids = IdIndex()
    for digest, flags in ((1, 0), (2, AGAIN), (2, 0)):
        ids.add(PUBLISHED, "42", ("42", 0, digest, flags, 0, 0, OWN))
    assert ids.find("42") == [PublishedRecord(0, 1), PublishedRecord(0, 2)]
    assert ids.find("43") == []
    assert len(ids) == 1
    ids.close()


def test_edited_and_waiting_events_are_not_compared() -> None:
    ids = IdIndex()
    ids.add(PUBLISHED, "edited", ("edited", 0, 1, AGAIN | EDITED, 0, 0, OWN))
    ids.add(WAITING, "waits", ("waits",))
    ids.add(DEAD_LETTERS, "letter", ("letter", 0, 5, 0, 0, 0))
    ids.add(ORDER, "k", (0, b"k", 1, 1, "e", 0))
    assert ids.find("edited") == ids.find("waits") == [PublishedRecord(*UNCOMPARED)]
    assert ids.find("letter") == [PublishedRecord(0, 5)], "a dead letter has the payload of its row"
    assert ids.find("k") == []
    ids.close()


@pytest.mark.parametrize("written", FORMATS)
@pytest.mark.parametrize("today", FORMATS)
def test_records_of_an_earlier_format_are_not_called_others(written: RecordFormat, today: RecordFormat) -> None:
    unused: Any = None
    taken = CertainFingerprinter(EventProcessor(unused, unused, unused, unused, unused, frozenset(), 1, 1), today)
    made = record_maker(written, key_schema=None)(EVENT, Route("orders"), ({}, SCHEMA))
    # A consumer receives header values as bytes.
    headers: Any = [(name, value.encode() if isinstance(value, str) else value) for name, value in made.headers]
    expected = taken.of_row(EVENT, Route("orders")) if written == today else UNCOMPARED
    assert taken.of_record(made.value, headers) == expected


def test_avro_is_not_taken_for_other_json() -> None:
    unused: Any = None
    taken = CertainFingerprinter(
        EventProcessor(unused, unused, unused, unused, unused, frozenset(), 1, 1), RecordFormat(schema_id="prefix")
    )
    assert taken.of_record(b"\0\0\0\0\7\x02\x04", []) == UNCOMPARED
