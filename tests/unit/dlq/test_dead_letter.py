"""Reads dead letters: they yield the original event or row, or say which part is missing."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.dlq.dead_letter import DeadLetter, DeadLetterFilter, DeadLetterId
from tailrace.dlq.record import dead_letter
from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.event import Column, Headers, OutboxEvent, Record, Row
from tailrace.outbox.layouts import DEBEZIUM, Layout

ROW = Row((Column("id", 2950), Column("payload", 17), Column("note", 25)), (b"e", b"\\xff", None), "0/1:0", 1700)
REJECTED = Rejected(Reason.SCHEMA_VALIDATION_FAILED, "$.a: expected string, got 1.", remedy="Fix it.")


def event(
    payload: bytes | None = b'{"a":1}',
    key: bytes | None = b"k",
    extra: Headers | None = None,
    version: str | None = None,
) -> OutboxEvent:
    return OutboxEvent("e-1", "Placed", "order", key, payload, version, "0/1:0", 1700, extra or [])


def read_back(record: Record, *, recorded_ms: int | None = None) -> DeadLetter:
    """A dead letter as read from Kafka: header values are bytes."""
    headers: Headers = [(name, value.encode() if isinstance(value, str) else value) for name, value in record.headers]
    stamp = record.timestamp if recorded_ms is None else recorded_ms
    return DeadLetter(DeadLetterId(0, 7), stamp, record.key, record.value or b"", headers)


def letter(
    subject: OutboxEvent | None,
    row: Row = ROW,
    *,
    rejected: Rejected = REJECTED,
    limit: int = 1000,
    keep: bool = True,
    recorded_ms: int | None = None,
) -> DeadLetter:
    record = dead_letter(
        row, subject, "orders", rejected, letter_topic="d", pipeline="p", limit_bytes=limit, keep_payload=keep
    )
    return read_back(record, recorded_ms=recorded_ms)


@pytest.mark.parametrize(
    ("text", "partition", "offset"), [("0-42", 0, 42), ("42", 0, 42), ("3-0", 3, 0), (" 1-2 ", 1, 2)]
)
def test_ids_as_people_write_them(text: str, partition: int, offset: int) -> None:
    assert DeadLetterId.parse(text) == (partition, offset)
    assert DeadLetterId.parse(str(DeadLetterId(partition, offset))) == (partition, offset)


@pytest.mark.parametrize("text", ["", "-1", "0-", "a", "1-2-3", "0x1", "١", "9" * 30])
def test_invalid_ids_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError):
        DeadLetterId.parse(text)


def test_reason_explanation_and_remedy_are_read() -> None:
    found = letter(event())
    assert (found.reason, found.explanation) == ("schema_validation_failed", "$.a: expected string, got 1.")
    assert found.remedy == "Fix it."
    assert (found.event_id, found.type, found.topic, found.position) == ("e-1", "Placed", "orders", "0/1:0")
    assert (found.kind, found.key_text, found.committed_ms) == ("original", "k", 1700)


def test_an_explanation_without_a_remedy() -> None:
    found = letter(event(), rejected=Rejected(Reason.POISON_MESSAGE, "No."))
    assert (found.explanation, found.remedy) == ("No.", "")


def test_the_commit_time_is_kept_on_a_topic_with_log_append_time() -> None:
    assert letter(event(), recorded_ms=99_999).committed_ms == 1700


columns = st.lists(
    st.tuples(st.text(min_size=1, max_size=10).filter(lambda name: name not in ("id", "type", "position", "timestamp")),
              st.binary(max_size=50)),
    max_size=4,
    unique_by=lambda pair: pair[0],
)  # fmt: skip


@given(
    payload=st.none() | st.binary(max_size=200),
    key=st.none() | st.binary(max_size=50),
    version=st.none() | st.text(max_size=5),
    extra=columns,
)
def test_any_event_is_read_back_unchanged(
    payload: bytes | None, key: bytes | None, version: str | None, extra: list[tuple[str, bytes]]
) -> None:
    original = event(payload, key, list(extra), version)
    assert letter(original).event() == original


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.lists(st.tuples(names, st.none() | st.binary(max_size=40)), min_size=1, max_size=5, unique_by=lambda c: c[0]))
def test_any_row_is_read_back_unchanged(cells: list[tuple[str, bytes | None]]) -> None:
    row = Row(tuple(Column(name, 25) for name, _ in cells), tuple(value for _, value in cells), "0/2:1", 1234)
    found = letter(None, row, limit=10_000)
    assert found.is_row
    assert found.row() == row


def test_a_row_with_undecodable_bytes_passes_once_they_are_corrected() -> None:
    columns = tuple(Column(name, 25) for name in ("id", "type", "aggregatetype", "aggregateid", "payload"))
    found = letter(None, Row(columns, (b"e", b"T", b"order", b"k\xff", b"{}"), "0/2:1", 1234), limit=10_000)
    with pytest.raises(Rejected, match="column aggregateid"):
        Layout(DEBEZIUM).read(found.row())
    corrected = b'{"id": "e", "type": "T", "aggregatetype": "order", "aggregateid": "k", "payload": "{}"}'
    assert Layout(DEBEZIUM).read(found.with_payload(corrected).row()).key == b"k"


@pytest.mark.parametrize(
    ("incomplete", "word"),
    [
        (letter(event(b"x" * 2000)), "does not contain the payload"),
        (letter(event(), keep=False), "does not contain the payload"),
        (letter(event(key=b"k" * 5000)), "does not contain the key"),
        (letter(event(extra=[("big", b"x" * 5000)])), "does not contain these columns: big"),
        (letter(event(extra=[("tailrace.redriven", b"forged")])), "tailrace.redriven"),
    ],
)
def test_an_incomplete_event_is_rejected(incomplete: DeadLetter, word: str) -> None:
    with pytest.raises(Rejected, match=word) as caught:
        incomplete.event()
    assert caught.value.remedy


def test_an_incomplete_row_is_rejected() -> None:
    with pytest.raises(Rejected, match="does not contain the row"):
        letter(None, limit=5).row()
    many = Row(tuple(Column(f"column_{n}", 25) for n in range(1000)), (None,) * 1000, "p", 1)
    with pytest.raises(Rejected, match="does not name the columns"):
        letter(None, many, limit=100_000).row()


def test_a_payload_that_was_not_stored_is_recognised_by_its_hash() -> None:
    found = letter(event(b'{"a":1}'), keep=False)
    assert found.is_original(b'{"a":1}')
    assert not found.is_original(b'{"a":2}')
    assert found.details["tailrace.payload.sha256"] == hashlib.sha256(b'{"a":1}').hexdigest()
    assert found.with_payload(b'{"a":1}').event() == event()


def test_another_payload_changes_nothing_else() -> None:
    assert letter(event(extra=[("t", b"1")])).with_payload(b"new").event() == event(b"new", extra=[("t", b"1")])
    assert letter(event(None)).with_payload(b"new").event() == event(b"new")
    corrected = letter(None).with_payload(b'{"id": "e", "payload": "\\\\x00", "note": {"base64": "/w=="}}')
    assert corrected.row().values == (b"e", b"\\x00", b"\xff")


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b'{"id": "e"}', b'{"id": 1, "payload": null, "note": null}',
     b'{"id": "e", "payload": null, "note": null, "more": null}',
     b'{"id": "e", "payload": {"base64": "?"}, "note": null}'],
)  # fmt: skip
def test_a_row_given_by_hand_must_have_its_columns(value: bytes) -> None:
    with pytest.raises(Rejected, match="the row"):
        letter(None).with_payload(value).row()


def test_a_foreign_record_is_not_read_as_an_event() -> None:
    stranger = DeadLetter(DeadLetterId(0, 0), 5, None, b"\xff", [("a", None), ("b", b"\xff")])
    assert (stranger.reason, stranger.explanation, stranger.topic, stranger.committed_ms) == ("", "", None, 5)
    with pytest.raises(Rejected):
        stranger.row()


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (DeadLetterFilter(), True),
        (DeadLetterFilter(reasons=("poison_message", "schema_validation_failed")), True),
        (DeadLetterFilter(reasons=("poison_message",)), False),
        (DeadLetterFilter(types=("Pl*",)), True),
        (DeadLetterFilter(types=("pl*",)), False),
        (DeadLetterFilter(keys=("k?", "k")), True),
        (DeadLetterFilter(keys=("k?",)), False),
        (DeadLetterFilter(since_ms=1700, until_ms=1701), True),
        (DeadLetterFilter(since_ms=1701), False),
        (DeadLetterFilter(until_ms=1700), False),
        (DeadLetterFilter(types=("Placed",), keys=("other",)), False),
    ],
)
def test_filters_match(wanted: DeadLetterFilter, matches: bool) -> None:
    assert wanted.matches(letter(event())) is matches
    assert bool(wanted) is (wanted != DeadLetterFilter())
