"""Tests of sequence.py: gaps and repeats of sequence numbers, replays, and what is stored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import LayoutMismatch, Reason
from tailrace.event import UNREADABLE, Column, Row
from tailrace.rules.sequence import KEY_BYTES, SequenceCheck, SequenceColumns

COLUMNS = tuple(Column(name, 25) for name in ("aggregate_id", "number", "metadata"))
NAMES = SequenceColumns("number", ("aggregate_id",), "metadata#/replay_of")


def check(names: SequenceColumns = NAMES, limit: int = 100, *, fixed: bool = True) -> SequenceCheck:
    return SequenceCheck(names, limit=limit, fixed=fixed)


def row(number: object, aggregate: str = "a", position: str = "", **metadata: Any) -> Row:
    row.count = getattr(row, "count", 0) + 1  # type: ignore[attr-defined]
    text = None if number is None else str(number).encode()
    at = position or f"0/1:{row.count}"  # type: ignore[attr-defined]
    return Row(COLUMNS, (aggregate.encode(), text, json.dumps(metadata).encode()), at, 5)


def wrong(of: SequenceCheck, *rows: Row) -> list[str | None]:
    """Returns what is wrong with each row."""
    found = of.observe(list(rows))
    return [found[each.position].explanation.rpartition(": ")[2] if each.position in found else None for each in rows]


def test_gaps_and_repeats_are_found_once() -> None:
    assert wrong(check(), *map(row, (4, 5, 7, 8, 8, 3, 9, 13))) == [
        None,
        None,
        "7 follows 5, and 6 is missing",
        None,
        "8 repeats, after 8",
        "3 repeats, after 8",
        None,
        "13 follows 9, and 10 to 12 are missing",
    ]


def test_aggregates_are_independent() -> None:
    of = check()
    assert wrong(of, row(1, "a"), row(7, "b"), row(2, "a"), row(8, "b"), row(1, "c")) == [None] * 5
    (rejected,) = of.observe([row(4, "b")]).values()
    assert rejected.reason is Reason.PERMANENT_FAILURE
    assert rejected.explanation == "the sequence number of b is out of order: 4 repeats, after 8"


def test_several_columns_name_an_aggregate_without_confusion() -> None:
    of = check(SequenceColumns("number", ("aggregate_id", "metadata#/kind")))
    assert wrong(of, row(1, "a", kind="bc"), row(5, "ab", kind="c"), row(2, "a", kind="bc")) == [None] * 3


@pytest.mark.parametrize("number", [None, "", "-1", "1.0", "x", "9" * 20])
def test_an_unusable_number_is_rejected_and_changes_nothing(number: object) -> None:
    of = check()
    assert "sequence number in 'number' is " in str(wrong(of, row(1), row(number), row(2))[1])
    assert of.changes() == {b"a": 2}


def test_marked_replays_pass_and_change_nothing() -> None:
    assert wrong(check(), row(1), row(2), row(1, replay_of="e-1"), row(9, replay_of="e-9"), row(3)) == [None] * 5


def test_rows_of_a_rewound_pipeline_pass_and_change_nothing() -> None:
    of = check()
    of.load(b"a", 3)
    of.is_replayed = lambda position: position.startswith("0/1:")
    rows = [row(number, position=f"0/{1 if number < 4 else 2}:{number}") for number in (1, 2, 3, 4, 5)]
    assert wrong(of, *rows) == [None] * 5
    assert of.changes() == {b"a": 5}


def test_rows_of_the_first_read_are_only_noted() -> None:
    """The table is not in the order of the commits."""
    of = check()
    rows = [row(n, position=f"0/1:t{n}") for n in (3, 1, 7)] + [row(2, position=f"5.1:{'a' * 16}")]
    assert wrong(of, *rows, row(8), row(10)) == [None] * 5 + ["10 follows 8, and 9 is missing"]


def test_a_number_inside_a_document_is_read() -> None:
    of = check(SequenceColumns("metadata#/at/number", ("aggregate_id",)))
    assert wrong(of, row(0, at={"number": 1}), row(0, at={"number": 3})) == [None, "3 follows 1, and 2 is missing"]


def test_a_column_that_the_table_lacks_stops_the_pipeline() -> None:
    with pytest.raises(LayoutMismatch, match="'absent'"):
        check(SequenceColumns("absent#/number", ("aggregate_id",))).observe([row(1)])


def test_a_document_without_the_field_is_rejected_alone() -> None:
    of = check(SequenceColumns("absent", ("aggregate_id",)), fixed=False)
    assert "is missing" in str(wrong(of, row(1)))


def test_rows_that_cannot_be_read_are_left_to_the_layout() -> None:
    of = check()
    assert wrong(of, row(1), Row(UNREADABLE, (b"{}", b"why"), "0/1:0", 5), row(2)) == [None] * 3


def test_memory_is_bounded_and_the_oldest_aggregate_is_forgotten() -> None:
    of = check(limit=2)
    assert wrong(of, row(1, "a"), row(1, "b"), row(2, "a"), row(1, "c"), row(9, "b")) == [None] * 5
    assert of.changes() == {b"a": None, b"b": 9, b"c": 1}


def test_long_names_are_stored_as_their_hash() -> None:
    of = check()
    of.observe([row(1, "x" * 100_000)])
    (stored,) = of.changes()
    assert len(stored) <= KEY_BYTES


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6)), max_size=40), st.integers(0, 40))
def test_what_is_stored_continues_where_it_was(events: list[tuple[str, int]], cut: int) -> None:
    """A restart at any row, with what was stored up to there, finds the same as no restart."""
    rows = [row(number, aggregate) for aggregate, number in events]
    whole = check(limit=2)
    before = wrong(whole, *rows)
    first, second = check(limit=2), check(limit=2)
    found = wrong(first, *rows[:cut])
    for aggregate, number in first.changes().items():
        if number is not None:
            second.load(aggregate, number)
    assert found + wrong(second, *rows[cut:]) == before
