"""The verdict of the example `user_outbox` finds each kind of error; the tests that examples/README.md names exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tailrace.testkit.oracle import ConsumedRecord, WriteOutcome, WrittenEvent

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def verdict() -> Any:
    # Examples are not installed.
    sys.path.insert(0, str(ROOT))
    try:
        import examples.user_outbox.verdict as module
    finally:
        sys.path.remove(str(ROOT))
    return module


def document(event: str, user: str, version: int, status: str = "published", **other: object) -> dict[str, Any]:
    known = {"payload": {}, "retry_count": 0, "published_at": "now"}
    return {"event_id": event, "entity_id": user, "entity_version": version, "status": status, **known, **other}


def record(event: str, user: str, offset: int) -> ConsumedRecord:
    return ConsumedRecord(event, user, "users", 0, offset)


FAILED: dict[str, Any] = {"status": "failed", "retry_count": 1, "last_error": "why"}
DOCUMENTS = [
    document("a", "u", 1),
    document("b", "u", 2),
    document("old", "u", 1),
    document("bad", "hand", 1, **FAILED),
]
RECORDS = [record("a", "u", 0), record("b", "u", 1), record("old", "u", 2)]
LETTERS = [record("bad", "hand", 0)]
WRITTEN = [
    WrittenEvent("a", "u", 1, True, WriteOutcome.COMMITTED),
    WrittenEvent("gone", "u", 2, True, WriteOutcome.ROLLED_BACK),
]


@pytest.mark.parametrize(
    ("records", "letters", "wrong"),
    [
        (RECORDS, LETTERS, []),
        (RECORDS[1:], LETTERS, ["a"]),
        ([*RECORDS, record("b", "u", 3)], LETTERS, ["b"]),
        ([*RECORDS, record("gone", "u", 3)], LETTERS, ["gone"]),
        ([record("b", "u", 0), record("a", "u", 1), RECORDS[2]], LETTERS, ["a"]),
        (RECORDS, [], ["bad"]),
    ],
    ids=["right", "missing", "twice", "rolled back", "out of order", "no dead letter"],
)
def test_delivery(verdict: Any, records: list[ConsumedRecord], letters: list[ConsumedRecord], wrong: list[str]) -> None:
    assert verdict.delivery(WRITTEN, DOCUMENTS, records, letters, {"old"}, {"hand"}).wrong == wrong


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, []),
        ({"status": "pending"}, ["a is pending"]),
        ({"published_at": None}, ["a is published"]),
        (FAILED, ["a is failed"]),
        ({"event_id": "unknown"}, ["unknown is published"]),
    ],
)
def test_statuses(verdict: Any, changed: dict[str, Any], wrong: list[str]) -> None:
    documents = [{**DOCUMENTS[0], **changed}, *DOCUMENTS[1:]]
    assert verdict.statuses(documents, RECORDS, LETTERS).wrong == wrong


@pytest.mark.parametrize("changed", [{"status": "published"}, {"retry_count": 2}, {"last_error": None}])
def test_the_status_of_a_dead_letter(verdict: Any, changed: dict[str, Any]) -> None:
    assert len(verdict.statuses([*DOCUMENTS[:3], {**DOCUMENTS[3], **changed}], RECORDS, LETTERS).wrong) == 1


@pytest.mark.parametrize(
    ("users", "right"), [({"u": 2}, True), ({"u": 1}, False), ({}, False), ({"u": 2, "refused": 1}, False)]
)
def test_entities(verdict: Any, users: dict[str, int], right: bool) -> None:
    assert (verdict.entities(DOCUMENTS, users, {"old"}, {"hand"}).wrong == []) is right


def test_a_deleted_entity(verdict: Any) -> None:
    documents = [*DOCUMENTS, document("end", "u", 3, payload=None)]
    assert verdict.entities(documents, {}, {"old"}, {"hand"}).wrong == []
    assert verdict.entities(documents, {"u": 2}, {"old"}, {"hand"}).wrong == ["u"]
    assert verdict.entities([documents[0], documents[-1]], {}, (), ()).wrong == ["u"]


@pytest.mark.parametrize(
    ("outcomes", "wrong"),
    [
        ({"a": "applied", "b": "applied", "old": "stale"}, []),
        ({"a": "applied", "b": "applied", "old": "applied"}, ["old"]),
        ({"a": "applied", "old": "stale"}, ["b"]),
        ({"a": "applied", "b": "applied", "old": "stale", "bad": "applied"}, ["bad"]),
    ],
)
def test_processed(verdict: Any, outcomes: dict[str, str], wrong: list[str]) -> None:
    markers = [{"event_id": event, "outcome": outcome} for event, outcome in outcomes.items()]
    assert verdict.processed(RECORDS, markers, {"old"}).wrong == wrong


def test_the_named_tests_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "examples" / "README.md").read_text())
    assert len(named) > 9
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert not missing
