"""Resolutions: which dead letters they resolve."""

from __future__ import annotations

import pytest

from tailrace.dlq import resolutions
from tailrace.dlq.dead_letter import DeadLetter, DeadLetterId
from tailrace.dlq.resolutions import UNREADABLE, Resolution, ResolvedIds
from tailrace.kafka.client import KafkaOptions

LETTER = DeadLetter(DeadLetterId(0, 7), 1, None, b"", [("tailrace.position", b"0/1:0")])
RESOLUTION = Resolution("redriven", 5, "ann@host", "fixed", "orders", edited=True, position="0/1:0")


def test_a_resolution_is_read_as_it_was_written() -> None:
    record = resolutions.record(KafkaOptions("b", "p", dead_letter_topic="d"), LETTER.id, RESOLUTION)
    assert (record.topic, record.key) == ("d.marks", b"0-7")
    assert Resolution.parse(record.value or b"") == RESOLUTION
    assert resolutions.dead_letter_id_of(record.key) == LETTER.id


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"{}", b'"x"', b'{"action": "x", "at_ms": "soon"}'])
def test_an_unreadable_resolution_counts(value: bytes) -> None:
    mark = Resolution.parse(value)
    assert mark.action == UNREADABLE
    resolved = ResolvedIds()
    resolved.note(LETTER.id, mark)
    assert LETTER in resolved


@pytest.mark.parametrize("key", [None, b"", b"\xff", b"x"])
def test_other_keys_name_no_dead_letter(key: bytes | None) -> None:
    assert resolutions.dead_letter_id_of(key) is None


def test_a_resolution_concerns_only_its_own_dead_letter() -> None:
    resolved = ResolvedIds()
    assert LETTER not in resolved
    resolved.note(LETTER.id, RESOLUTION)
    assert LETTER in resolved
    assert RESOLUTION.is_of(LETTER)
    renewed = DeadLetter(LETTER.id, 1, None, b"", [("tailrace.position", b"0/9:0")])
    assert renewed not in resolved
    assert not RESOLUTION.is_of(renewed)
    assert DeadLetter(DeadLetterId(1, 7), 1, None, b"", LETTER.headers) not in resolved
    resolved.note(LETTER.id, None)
    assert LETTER not in resolved
