"""The payload of a row has the same fingerprint as the value of its record, in every format, and no other has."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import Reason, Rejected
from tailrace.event import OutboxEvent, Route
from tailrace.pipeline.processor import EventProcessor
from tailrace.records.formats import RecordFormat, record_maker
from tailrace.schema_versions import Version
from tailrace.schemas.avro.compiled import CompiledAvroSchema
from tailrace.schemas.compiled import RegistryIds
from tailrace.schemas.json_schema import CompiledJsonSchema
from tailrace.schemas.strict_json import parse
from tailrace.schemas.validation import ValidatedPayload
from tailrace.verify.findings import UNKNOWN
from tailrace.verify.fingerprints import Fingerprinter, of_payload

TO = Route("orders")
SCHEMA = CompiledJsonSchema.compile(
    "OrderPlaced", Version(1), {}, "schemas/OrderPlaced/1.json", registered=RegistryIds(7, None)
)
FORMATS = [
    RecordFormat(),
    RecordFormat(schema_id="prefix"),
    RecordFormat(schema_id="header"),
    RecordFormat(cloudevents="binary", source="/shop"),
    RecordFormat(cloudevents="structured", source="/shop"),
]


def event(payload: bytes | None, *, key: bytes = b"k") -> OutboxEvent:
    return OutboxEvent("e-1", "OrderPlaced", "order", key, payload, None, "0/1:1", 1000, [])


def fingerprinter(format: RecordFormat) -> Fingerprinter:
    unused: Any = None
    return Fingerprinter(EventProcessor(unused, unused, unused, unused, unused, frozenset(), 1, 1), format)


@pytest.mark.parametrize("format", FORMATS)
@given(payload=st.none() | st.text(max_size=5).map(lambda text: b'{"data":"%b"}' % text.encode().hex().encode()))
def test_a_payload_has_the_same_fingerprint_in_every_format(format: RecordFormat, payload: bytes | None) -> None:
    make = record_maker(format, key_schema=None)
    # The record was published at another time, with headers that are not in the table.
    tricky = event(payload, key=b'"datacontenttype":"application/json","data":')
    made = make(tricky._replace(committed_ms=9), TO, ({}, SCHEMA))
    taken = fingerprinter(format)
    assert taken.of_record(made.value, made.headers) == taken.of_row(event(payload), TO)
    other = make(event(b'{"data":"other"}'), TO, ({}, SCHEMA))
    assert taken.of_record(other.value, other.headers) != taken.of_row(event(payload), TO)


def avro(number: int, *, fails: bool = False) -> Fingerprinter:
    """A pipeline whose values are Avro, with the schema of this number."""
    schema = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}]}
    compiled = CompiledAvroSchema.compile(
        "OrderPlaced", Version(1), schema, "1.avsc", registered=RegistryIds(number, None)
    )

    def check(event: OutboxEvent, topic: str) -> ValidatedPayload:
        if fails:
            raise Rejected(Reason.SCHEMA_VALIDATION_FAILED, "the schema was changed since")
        return parse(event.payload or b""), compiled

    format, unused = RecordFormat(value="avro", schema_id="prefix"), cast(Any, None)
    make = record_maker(format, key_schema=None)
    return Fingerprinter(EventProcessor(unused, unused, check, make, unused, frozenset(), 1, 1), format)


def test_avro_is_encoded_again() -> None:
    taken = avro(7)
    one = taken.of_row(event(b'{"n": 1}'), TO)
    assert one == taken.of_row(event(b'{"n":1}'), TO), "the value counts, not how the row spells it"
    assert one.frame == taken.of_row(event(b'{"n": 2}'), TO).frame
    assert one.digest != taken.of_row(event(b'{"n": 2}'), TO).digest
    assert one.frame != avro(8).of_row(event(b'{"n": 1}'), TO).frame, "another schema: not to be compared"
    assert avro(7, fails=True).of_row(event(b'{"n": 1}'), TO).frame == UNKNOWN
    assert taken.of_row(event(b'{"n": 1}'), None).frame == UNKNOWN
    assert taken.of_dead_letter("original", b'{"n": 1}').frame == UNKNOWN


def test_fingerprints_of_dead_letters() -> None:
    taken = fingerprinter(RecordFormat())
    assert taken.of_dead_letter("original", b"{}") == of_payload(b"{}")
    assert taken.of_dead_letter("null", b"anything") == of_payload(None) != of_payload(b"")
    assert taken.of_dead_letter("omitted", b"{}").frame == UNKNOWN
