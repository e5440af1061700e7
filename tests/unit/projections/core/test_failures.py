"""Failed events: splitting a batch, and dead letters, which fit and restore the same record for any event."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.cli.dlq.view import as_json, row
from tailrace.dlq.dead_letter import DeadLetter, DeadLetterId
from tailrace.dlq.record import HEADER_BYTES
from tailrace.dlq.redrive import publish_again
from tailrace.dlq.resolutions import Resolution, ResolvedIds
from tailrace.errors import Reason, Rejected
from tailrace.event import Headers, Record
from tailrace.projections.core.event import Event, read_event
from tailrace.projections.core.failures import LIMIT_BYTES, Failure, dead_letter_record, split_batch
from tailrace.projections.core.store import Partition

FAILURE = Failure(Reason.MAX_RETRIES_EXCEEDED, "ValueError: no such order.", "Fix the handler.", 5)
OWN = [("id", b"e-1"), ("type", b"Placed"), ("position", b"0/1:0"), ("timestamp", b"1700"), ("traceparent", b"00-a")]
ORDERS = Partition("orders", 3)
PRODUCER_BYTES = 1_000_000
"""The default limit of a producer."""


def event(
    value: bytes | None = b'{"a":1}',
    key: bytes | None = b"k",
    headers: list[tuple[str, bytes]] | None = None,
    *,
    partition: Partition = ORDERS,
    offset: int = 42,
    time_ms: int = 1600,
) -> Event:
    return read_event(partition, offset, key, value, OWN if headers is None else headers, time_ms)


def written(subject: Event, failure: Failure = FAILURE, **options: Any) -> Record:
    return dead_letter_record(subject, failure, group="order-summary", topic="order-summary.dead-letters", **options)


def read_back(record: Record, offset: int = 7, recorded_ms: int = 99_999) -> DeadLetter:
    """As Kafka gives it: header values are bytes. The topic stamps records itself."""
    headers: Headers = [(name, value.encode() if isinstance(value, str) else value) for name, value in record.headers]
    return DeadLetter(DeadLetterId(0, offset), recorded_ms, record.key, record.value or b"", headers)


def test_a_dead_letter_holds_the_event_and_its_failure() -> None:
    record = written(event())
    assert (record.topic, record.value, record.key) == ("order-summary.dead-letters", b'{"a":1}', b"k")
    explanation = "ValueError: no such order. Remedy: Fix the handler."
    expected = {
        "tailrace.reason": b"max_retries_exceeded",
        "tailrace.explanation": explanation.encode(),
        "tailrace.position": b"0/1:0",
        "tailrace.topic": b"orders",
        "tailrace.payload": b"original",
        "tailrace.payload.length": b"7",
        "tailrace.payload.sha256": hashlib.sha256(b'{"a":1}').hexdigest().encode(),
        "tailrace.consumer": b"order-summary",
        "tailrace.consumer.partition": b"3",
        "tailrace.consumer.offset": b"42",
        "tailrace.consumer.timestamp": b"1700",
        "tailrace.attempts": b"5",
        "__connect.errors.connector.name": b"order-summary",
        "__connect.errors.task.id": b"0",
        "__connect.errors.stage": b"TASK_PUT",
        "__connect.errors.exception.class.name": b"tailrace.Rejected",
        "__connect.errors.exception.message": explanation.encode(),
        "__connect.errors.topic": b"orders",
        "__connect.errors.partition": b"3",
        "__connect.errors.offset": b"42",
        "kafka_dlt-exception-fqcn": b"tailrace.Rejected",
        "kafka_dlt-exception-message": explanation.encode(),
        "kafka_dlt-original-timestamp": (1700).to_bytes(8, "big"),
        "kafka_dlt-original-topic": b"orders",
        "kafka_dlt-original-partition": (3).to_bytes(4, "big"),
        "kafka_dlt-original-offset": (42).to_bytes(8, "big"),
        "kafka_dlt-original-consumer-group": b"order-summary",
        **dict(OWN),
    }
    headers = read_back(record).headers
    assert dict(headers) == expected
    assert len(headers) == len(expected)


def test_the_fields_of_a_dead_letter() -> None:
    found = read_back(written(event()))
    assert (found.reason, found.explanation, found.remedy) == (
        "max_retries_exceeded", "ValueError: no such order.", "Fix the handler.",
    )  # fmt: skip
    assert (found.consumer, found.read_from, found.topic) == ("order-summary", "orders[3]@42", "orders")
    assert (found.event_id, found.type, found.position, found.committed_ms) == ("e-1", "Placed", "0/1:0", 1700)
    assert not found.is_row


def test_a_record_without_an_id_is_named_by_its_location() -> None:
    found = read_back(written(event(headers=[])))
    assert found.position == found.event_id == "orders[3]@42"
    assert (found.type, found.committed_ms, found.is_row) == (None, 1600, False)
    assert found.record() == Record("orders", b'{"a":1}', b"k", [], 1600)


def test_a_cloud_event_has_its_own_id() -> None:
    found = read_back(written(event(headers=[("ce_id", b"c-1"), ("ce_type", b"T")])))
    assert (found.event_id, found.type) == ("c-1", "T")


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["id", "type", "position", "timestamp", "tailrace.redriven", "tailrace.replay", "tailrace.reason",
     "tailrace.consumer", "tailrace.kept.", "tailrace.kept.id", "kafka_dlt-original-topic", "__connect.errors.topic"]
)  # fmt: skip
events = st.builds(
    event,
    value=st.none() | st.binary(max_size=300),
    key=st.none() | st.binary(max_size=40),
    headers=st.lists(st.tuples(names, st.binary(max_size=40) | st.sampled_from([b"1" * 30, b"0"])), max_size=8),
    partition=st.builds(Partition, st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True), st.integers(0, 1 << 20)),
    offset=st.integers(0, (1 << 63) - 1),
    time_ms=st.integers(-1, (1 << 63) - 1),
)
failures = st.builds(Failure, st.sampled_from(Reason), st.text(), st.text(), st.integers(1, 1000))


@given(events, failures)
def test_any_event_reads_back_the_same(subject: Event, failure: Failure) -> None:
    found = read_back(written(subject, failure))
    record = found.record()
    assert (record.topic, record.value, record.key) == (subject.partition.topic, subject.value, subject.key)
    assert record.headers == list(subject.headers)
    assert (found.consumer, found.reason, found.read_from) == ("order-summary", failure.reason.value, subject.location)
    assert found.position == (subject.position or subject.location)


sizes = st.integers(0, 3) | st.integers(HEADER_BYTES - 40, HEADER_BYTES + 1) | st.just(200_000)


@given(
    value=st.none() | st.sampled_from([0, LIMIT_BYTES, LIMIT_BYTES + 1, 4_000_000]),
    key=st.none() | sizes,
    headers=st.lists(st.tuples(sizes, sizes), max_size=60),
    text=sizes,
)
@example(value=LIMIT_BYTES, key=HEADER_BYTES, headers=[(0, 0)] * 30_000, text=HEADER_BYTES)
@settings(deadline=None, max_examples=60)
def test_a_dead_letter_of_any_size_fits_and_names_what_it_omits(
    value: int | None, key: int | None, headers: list[tuple[int, int]], text: int
) -> None:
    subject = event(
        None if value is None else b"v" * value,
        None if key is None else b"k" * key,
        [("é" * name, b"h" * size) for name, size in headers],
        partition=Partition("o" * 249, 3),
    )
    record = written(subject, replace(FAILURE, explanation="é" * text))
    found = read_back(record)
    carried = sum(len(name.encode()) + len(content or b"") + 10 for name, content in found.headers)
    assert len(record.value or b"") + len(record.key or b"") + carried < PRODUCER_BYTES
    assert record.value is not None
    if found.kind == "omitted" or {"tailrace.key.omitted", "tailrace.headers.omitted"} & set(found.details):
        with pytest.raises(Rejected, match="does not contain"):
            found.record()
    else:
        again = found.record()
        assert (again.value, again.key, again.headers) == (subject.value, subject.key, subject.headers)


@pytest.mark.parametrize(
    ("incomplete", "word"),
    [
        (written(event(b"x" * 11), limit_bytes=10), r"does not contain the payload.*11 bytes"),
        (written(event(), keep_payload=False), "does not contain the payload"),
        (written(event(key=b"k" * 5000)), "does not contain the key"),
        (written(event(headers=[("big", b"x" * 5000)])), "does not contain these headers: big"),
        (written(event(headers=[("tailrace.redriven", b"x" * 5000)])), "these headers: tailrace.redriven"),
    ],
)
def test_an_incomplete_event_is_not_restored(incomplete: Record, word: str) -> None:
    with pytest.raises(Rejected, match=word) as caught:
        read_back(incomplete).record()
    assert caught.value.remedy


def test_a_payload_that_was_not_kept_can_be_given() -> None:
    found = read_back(written(event(), keep_payload=False))
    with pytest.raises(Rejected) as caught:
        found.record()
    assert "orders[3]@42" in caught.value.remedy
    assert found.explanation == "ValueError"  # the text after the colon may quote the payload
    assert found.is_original(b'{"a":1}')
    assert found.with_payload(b'{"a":1}').record() == Record("orders", b'{"a":1}', b"k", list(OWN), 1700)


def test_a_tombstone_stays_one() -> None:
    record = written(event(None))
    assert record.value is not None, "on a compacted topic that would mean: delete"
    assert read_back(record).record().value is None
    assert read_back(written(event(b""))).record().value == b""


def test_a_redriven_record_is_unchanged_except_for_its_redrive_headers() -> None:
    before = [*OWN, ("tailrace.redriven", b"0-1")]
    found = read_back(written(event(headers=before)))
    again = publish_again(found)
    assert again[:-1] == ("orders", b'{"a":1}', b"k", [*before, ("tailrace.redriven", "0-7"), again.headers[-1]])
    assert again.headers[-1] == ("tailrace.redriven.for", "order-summary")
    assert again.timestamp > 1_600_000_000_000, "or Kafka might delete it at once"
    changed = publish_again(found.with_payload(b"new"), edited=True)
    assert (changed.value, changed.headers[-1]) == (b"new", ("tailrace.edited", "true"))


@pytest.mark.parametrize("stamp", [b"9" * 30, b"0", b"yesterday"])
def test_any_event_time_is_shown(stamp: bytes) -> None:
    found = read_back(written(event(headers=[("timestamp", stamp)], time_ms=-1)))
    assert row(found, None, with_state=False)["when"]
    assert as_json(found, None)["when"].endswith("Z")
    assert found.record().headers == [("timestamp", stamp)]


def test_only_copies_count_as_copies() -> None:
    first = read_back(written(event()))
    again = read_back(written(event(), replace(FAILURE, explanation="TimeoutError", attempts=1)), offset=8)
    assert first.fingerprint == again.fingerprint
    others = [
        written(event(offset=43)),  # the same event, redriven, has failed again
        written(event(partition=Partition("orders", 2))),
        written(event(b'{"a":2}')),  # the topic was re-created
        written(event(time_ms=1601, headers=[])),
        written(event(headers=[])),
        dead_letter_record(event(), FAILURE, group="another", topic="d"),
    ]
    fingerprints = {read_back(other).fingerprint for other in others}
    assert len(fingerprints) == len(others)
    assert first.fingerprint not in fingerprints


def test_a_resolution_counts_for_copies_and_no_other_dead_letter() -> None:
    first, again = read_back(written(event())), read_back(written(event()), offset=8)
    failed_again = read_back(written(event(offset=43)), offset=9)
    mark = Resolution("redriven", position=first.position, fingerprint=first.fingerprint)
    marked = ResolvedIds()
    marked.note(first.id, mark)
    assert first in marked
    assert again in marked
    assert failed_again not in marked
    marked.note(again.id, mark)
    marked.note(first.id, None)
    assert again in marked
    assert first in marked
    marked.note(again.id, None)
    assert first not in marked
    assert again not in marked


@given(st.integers(2, 50), st.data())
def test_a_split_keeps_all_events_in_order(size: int, data: st.DataObject) -> None:
    index = data.draw(st.none() | st.integers(0, size - 1))
    batch = [event(offset=number) for number in range(size)]
    pieces = split_batch(batch, index)
    assert [each for piece in pieces for each in piece] == batch
    assert all(0 < len(piece) < size for piece in pieces)
    if index is not None:
        assert [batch[index]] in [list(piece) for piece in pieces]
