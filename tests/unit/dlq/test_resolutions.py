"""Marks: what hides a letter, and what must not."""

from __future__ import annotations

import pytest

from tailrace.dlq import resolutions
from tailrace.dlq.dead_letter import DeadLetter, DeadLetterId
from tailrace.dlq.resolutions import UNREADABLE, Resolution, ResolvedIds
from tailrace.kafka.client import KafkaOptions

LETTER = DeadLetter(DeadLetterId(0, 7), 1, None, b"", [("tailrace.position", b"0/1:0")])
MARK = Resolution("redriven", 5, "ann@host", "mended", "orders", edited=True, position="0/1:0")


def test_a_mark_is_read_back() -> None:
    record = resolutions.record(KafkaOptions("b", "p", dead_letter_topic="d"), LETTER.id, MARK)
    assert (record.topic, record.key) == ("d.marks", b"0-7")
    assert Resolution.parse(record.value or b"") == MARK
    assert resolutions.dead_letter_id_of(record.key) == LETTER.id


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"{}", b'"x"', b'{"action": "x", "at_ms": "soon"}'])
def test_a_mark_that_cannot_be_read_counts_all_the_same(value: bytes) -> None:
    mark = Resolution.parse(value)
    assert mark.action == UNREADABLE
    resolved = ResolvedIds()
    resolved.note(LETTER.id, mark)
    assert LETTER in resolved


@pytest.mark.parametrize("key", [None, b"", b"\xff", b"x"])
def test_other_keys_are_nobodys_mark(key: bytes | None) -> None:
    assert resolutions.dead_letter_id_of(key) is None


def test_a_mark_hides_its_own_letter_only() -> None:
    resolved = ResolvedIds()
    assert LETTER not in resolved
    resolved.note(LETTER.id, MARK)
    assert LETTER in resolved
    assert MARK.is_of(LETTER)
    renewed = DeadLetter(LETTER.id, 1, None, b"", [("tailrace.position", b"0/9:0")])
    assert renewed not in resolved
    assert not MARK.is_of(renewed)
    assert DeadLetter(DeadLetterId(1, 7), 1, None, b"", LETTER.headers) not in resolved
    resolved.note(LETTER.id, None)
    assert LETTER not in resolved
