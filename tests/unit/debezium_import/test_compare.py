"""The comparison of two records of an event."""

from __future__ import annotations

import pytest

from tailrace.debezium_import.compare import (
    HEADER,
    KEY,
    PARTITION,
    VALUE,
    VALUE_BYTES,
    Comparison,
    SeenRecord,
)

OURS = SeenRecord(1, b"k", b'{"a": 1}', {"id": b"1", "type": b"T", "position": b"0/1:1"})
THEIRS = SeenRecord(1, b"k", b'{"a": 1}', {"id": b"1", "type": b"T", "__debezium.context.taskId": b"0"})


def compared(ours: SeenRecord, theirs: SeenRecord) -> Comparison:
    found = Comparison(events=1)
    found.compare("1", ours, theirs)
    return found


def test_the_same_record() -> None:
    found = compared(OURS, THEIRS)
    assert found.is_same
    assert found.added_headers == {"position"}


@pytest.mark.parametrize(
    ("theirs", "kind"),
    [
        (THEIRS._replace(key=None), KEY),
        (THEIRS._replace(partition=2), PARTITION),
        (THEIRS._replace(value=b'{"a": 2}'), VALUE),
        (THEIRS._replace(value=None), VALUE),
        (THEIRS._replace(value=b'"{\\"a\\": 1}"'), VALUE),
        (THEIRS._replace(headers={**THEIRS.headers, "eventType": b"T"}), HEADER),
        (THEIRS._replace(headers={**THEIRS.headers, "type": None}), HEADER),
    ],
)
def test_a_different_record(theirs: SeenRecord, kind: str) -> None:
    found = compared(OURS, theirs)
    assert not found.is_same
    assert found.counts == {kind: 1}
    assert found.examples == {kind: ["1"]}


def test_equal_json_in_another_form_is_a_note() -> None:
    found = compared(OURS, THEIRS._replace(value=b'{"a":1}'))
    assert found.is_same
    assert found.counts == {VALUE_BYTES: 1}


def test_without_a_key_the_partition_says_nothing() -> None:
    assert compared(OURS._replace(key=None), THEIRS._replace(key=None, partition=2)).is_same


def test_nothing_compared_is_not_the_same() -> None:
    assert not Comparison(events=3).is_same
