"""The comparison: each row gets one status, each problem its name, and a naive model agrees."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.verify.backend import AbsenceContext
from tailrace.verify.compare import compare_events
from tailrace.verify.findings import (
    AGAIN,
    AHEAD,
    DEAD_LETTERS,
    DISCARDED,
    EDITED,
    IS_ROW,
    NO_CHECKSUM,
    ORDER,
    OUTSIDE,
    PUBLISHED,
    REDRIVEN,
    SECOND,
    UNKNOWN,
    WAITING,
    WRITTEN,
    Findings,
    RecordDefect,
)
from tailrace.verify.placement import check_order
from tailrace.verify.spill import SpillFile

PASSED = AbsenceContext(passed=True)


def row(
    event: str, digest: int = 7, *, transaction: int = 0, created_ms: int = 50, frame: int = 0,
    checksums: tuple[int, int] = (5, 6),
) -> tuple[Any, ...]:  # fmt: skip
    return event, frame, digest, transaction, created_ms, 0, b"k", *checksums


def record(
    event: str, digest: int = 7, *, flags: int = 0, frame: int = 0, offset: int = 0, checksums: tuple[int, int] = (5, 6)
) -> tuple[Any, ...]:
    """Also for a dead letter, which has no checksums."""
    return event, frame, digest, flags, 0, offset, *checksums


def compared(
    rows: list[Any], records: list[Any], letters: list[Any] = [], waiting: list[Any] = [], ahead: list[Any] = [],  # noqa: B006 - never changed
    *, context: AbsenceContext = PASSED,
) -> Findings:  # fmt: skip
    found = Findings()
    compare_events([rows, records, [letter[:6] for letter in letters], waiting, ahead], context, found)
    return found


def test_rows_on_kafka_are_published() -> None:
    found = compared([row("a"), row("b")], [record("a"), record("b"), record("purged")])
    assert (found.rows, found.records, found.only_on_kafka) == (2, 3, 1)
    assert found.statuses == {"published": 2}
    assert not found.defects
    assert found.absent == 0


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        (0, "set_aside"),
        (DISCARDED, "discarded"),
        (REDRIVEN, "missing"),  # its mark says that there is a record
        (REDRIVEN | IS_ROW, "redriven"),
        (DISCARDED | IS_ROW, "discarded"),
        (IS_ROW, "set_aside"),
    ],
)
def test_the_status_of_a_dead_letter(flags: int, status: str) -> None:
    assert compared([row("a")], [], [record("a", flags=flags)]).statuses == {status: 1}


def test_a_dead_letter_of_a_replay_is_no_duplicate() -> None:
    found = compared(
        [row("a"), row("b")], [record("a")], [record("a", flags=AGAIN), record("b"), record("b", flags=AGAIN)]
    )
    assert found.statuses == {"published": 1, "set_aside": 1}
    assert not found.defects


def test_a_redriven_dead_letter_is_published_once() -> None:
    found = compared([row("a")], [record("a", flags=AGAIN)], [record("a", flags=REDRIVEN)])
    assert found.statuses == {"published": 1}
    assert found.again == 1
    assert not found.defects


def test_a_dead_letter_and_a_record_of_one_event_are_a_duplicate() -> None:
    assert compared([row("a")], [record("a")], [record("a")]).defects == {"duplicated": 1}


def test_replayed_and_redriven_records_are_no_duplicates() -> None:
    records = [record("a"), record("a", flags=AGAIN | SECOND), record("a", flags=AGAIN | SECOND)]
    assert not compared([row("a")], records).defects
    assert compared([row("a")], [*records, record("a", offset=9)]).examples["duplicated"][0].offset == 9


def test_the_redrive_of_a_dead_letter_is_the_only_publication_without_a_replay_header() -> None:
    redriven, replayed = record("a", flags=AGAIN, offset=8), record("a", flags=AGAIN | SECOND, offset=9)
    letter = record("a", flags=REDRIVEN)
    assert not compared([row("a")], [redriven, replayed, replayed], [letter]).defects
    for rows in ([row("a")], []):
        found = compared(rows, [redriven, replayed, redriven], [letter])
        assert found.defects == {"duplicated": 1}
        assert found.examples["duplicated"][0].offset == 8
        assert compared(rows, [record("a"), redriven]).defects == {"duplicated": 1}
    assert not compared([row("a"), row("a")], [redriven, redriven], [letter, letter]).defects


def test_rows_of_one_id_may_be_published_as_often() -> None:
    rows = [row("a", 1), row("a", 2), row("a", 3)]
    records = [record("a", digest) for digest in (1, 2, 3)]
    assert not compared(rows, records).defects
    assert compared(rows, [*records, record("a", 1)]).defects == {"duplicated": 1}
    assert compared(rows, [*records[:2], record("a", 4)]).defects == {"changed": 1}


def test_every_row_with_one_id_needs_a_record() -> None:
    rows = [row("a", 1, transaction=number) for number in (1, 2, 3)]
    assert compared(rows, [record("a", 1)]).statuses == {"published": 1, "missing": 2}
    # A replay publishes again what was published.
    assert compared(rows, [record("a", 1), *[record("a", 1, flags=AGAIN)] * 2]).statuses == {
        "published": 1,
        "missing": 2,
    }
    assert compared(rows, [record("a", 1, flags=AGAIN)]).statuses == {"published": 1, "missing": 2}
    letters = [record("a", 1), record("a", 1, flags=DISCARDED)]
    assert compared(rows, [record("a", 1)], letters).statuses == {"published": 1, "set_aside": 1, "discarded": 1}
    redriven = [record("a", 1, flags=REDRIVEN)] * 2
    records = [record("a", 1), *[record("a", 1, flags=AGAIN)] * 2]
    assert compared(rows, records, redriven).statuses == {"published": 3}
    later = compared(rows, [record("a", 1)], waiting=[("a",)], ahead=[("a",)])
    assert later.statuses == {"published": 1, "parked": 1, "not_yet": 1}
    behind = AbsenceContext(passed=False, is_behind=lambda transaction: transaction != 2)
    assert compared(rows, [record("a", 1)] * 2, context=behind).statuses == {"published": 2, "not_yet": 1}


def test_keys_and_types() -> None:
    assert compared([row("a")], [record("a", checksums=(9, 6))]).defects == {"key_changed": 1}
    assert compared([row("a")], [record("a", checksums=(5, 9))]).defects == {"type_changed": 1}
    assert not compared([row("a", checksums=(NO_CHECKSUM, NO_CHECKSUM))], [record("a")]).defects, (
        "today's rules make no record of it"
    )
    assert not compared([row("a")], [record("a", 2, checksums=(9, 9), flags=AGAIN | EDITED)]).defects
    both = [row("a", checksums=(1, 6)), row("a", checksums=(2, 6))]
    assert not compared(both, [record("a", checksums=(1, 6)), record("a", checksums=(2, 6))]).defects


def test_purged_rows_do_not_hide_duplicates() -> None:
    assert compared([], [record("a"), record("a")]).defects == {"duplicated": 1}


def test_payloads() -> None:
    assert compared([row("a", 1)], [record("a", 2)]).defects == {"changed": 1}
    assert compared([row("a", 1)], [], [record("a", 2)]).defects == {"changed": 1}
    assert not compared([row("a", 1)], [record("a", 2, flags=AGAIN | EDITED)]).defects
    assert compared([row("a", 1)], [record("a", 2, flags=AGAIN)]).defects == {"changed": 1}


@pytest.mark.parametrize(("of_row", "of_record"), [(1, 2), (UNKNOWN, 0), (0, UNKNOWN), (UNKNOWN, UNKNOWN)])
def test_payloads_that_cannot_be_compared_are_counted(of_row: int, of_record: int) -> None:
    found = compared([row("a", 1, frame=of_row)], [record("a", 2, frame=of_record)])
    assert found.not_compared == 1
    assert not found.defects


def test_absent_rows() -> None:
    def status(context: AbsenceContext, **known: Any) -> str:
        (found,) = compared([row("a", transaction=5, created_ms=50)], [], context=context, **known).statuses
        return found

    assert status(PASSED) == "missing"
    assert status(AbsenceContext(passed=False)) == "not_yet"
    assert status(AbsenceContext(passed=False, is_behind=lambda transaction: transaction < 5)) == "not_yet"
    assert status(AbsenceContext(passed=False, is_behind=lambda transaction: transaction < 6)) == "missing"
    assert status(PASSED, ahead=[("a",)]) == "not_yet"
    assert status(PASSED, waiting=[("a",)]) == "parked"
    assert status(AbsenceContext(passed=True, may_be_deleted=lambda *what: what == (0, b"k", 50))) == "expired"
    assert status(AbsenceContext(passed=True, may_be_deleted=lambda *what: what != (0, b"k", 50))) == "missing"
    assert status(AbsenceContext(passed=False, may_be_deleted=lambda *_: True)) == "not_yet"


def test_rows_from_before_the_first_start() -> None:
    rows = [row("a", transaction=1), row("b", transaction=5), row("c", transaction=1), row("d", transaction=1)]
    for passed in (True, False):
        context = AbsenceContext(passed, is_before=lambda transaction, created_ms: transaction < 2 and created_ms == 50)
        found = compared(rows, [record("c")], ahead=[("d",)], context=context)
        statuses = {"before_start": 1, "published": 1, "not_yet": 1 if passed else 2}
        assert +found.statuses == statuses | ({"missing": 1} if passed else {})
        assert found.absent == 2, "rows from before the start are not awaited"


def test_a_row_without_a_time_is_not_expired() -> None:
    found = compared(
        [row("a", created_ms=UNKNOWN)], [], context=AbsenceContext(passed=True, may_be_deleted=lambda *_: True)
    )
    assert found.statuses == {"missing": 1}


def test_outside_of_the_window_only_rows_count() -> None:
    outside = [record("a", flags=OUTSIDE), record("b", flags=OUTSIDE), record("b", flags=OUTSIDE)]
    found = compared([row("a")], outside)
    assert found.statuses == {"published": 1}
    assert (found.records, found.only_on_kafka, found.defects.total()) == (1, 0, 0)


def test_the_number_of_examples_is_limited() -> None:
    found = compared([row(str(number)) for number in range(100)], [])
    assert found.statuses == {"missing": 100}
    assert len(found.examples["missing"]) == 20
    assert found.examples["missing"][0] == ("0", 0, 50, UNKNOWN, UNKNOWN)


def in_order(*records: tuple[int, str, int, str]) -> list[str]:
    """Returns the records (place, key, position, event) that are out of order."""
    found = Findings()
    facts = [(place, key.encode(), at, 0, event, offset) for offset, (place, key, at, event) in enumerate(records)]
    check_order(facts, found)
    return [example.id for example in found.examples[RecordDefect.OUT_OF_ORDER]]


def test_order() -> None:
    assert in_order((0, "k", 1, "a"), (0, "k", 2, "b"), (0, "k", 2, "c")) == []
    assert in_order((0, "k", 1, "a"), (0, "k", 3, "c"), (0, "k", 2, "b"), (0, "k", 4, "d")) == ["b"]
    assert in_order((0, "k", 3, "a"), (0, "l", 2, "b"), (1, "k", 1, "c")) == []
    assert in_order((0, "k", 1, "a"), (0, "k", 2, "b"), (0, "k", 1, "a")) == [], "a duplicate, and only that"


EVENTS = st.sampled_from("abcdef")
FLAGS = st.sampled_from([0, 0, 0, AGAIN, AGAIN | EDITED, AGAIN | SECOND])
LETTER = st.sampled_from([0, REDRIVEN, DISCARDED])


@given(
    rows=st.lists(st.tuples(EVENTS, st.integers(0, 1), st.integers(0, 3)), unique_by=lambda each: each[0]),
    records=st.lists(st.tuples(EVENTS, st.integers(0, 1), FLAGS), max_size=12),
    letters=st.lists(st.tuples(EVENTS, LETTER), unique_by=lambda each: each[0]),
    waiting=st.sets(EVENTS),
    horizon=st.integers(0, 4),
    positions=st.lists(st.tuples(st.sampled_from("kl"), st.integers(0, 5)), max_size=10),
)
def test_the_comparison_agrees_with_a_naive_model(
    rows: list[tuple[str, int, int]],
    records: list[tuple[str, int, int]],
    letters: list[tuple[str, int]],
    waiting: set[str],
    horizon: int,
    positions: list[tuple[str, int]],
) -> None:
    """Through a spill file with so little memory that everything goes to disk."""
    found = Findings()
    with SpillFile(6, buckets=3, pending=2) as spill:
        for event, digest, transaction in rows:
            spill.add(WRITTEN, event, row(event, digest, transaction=transaction))
        for event, digest, flags in records:
            spill.add(PUBLISHED, event, record(event, digest, flags=flags))
        for event, flags in letters:
            spill.add(DEAD_LETTERS, event, record(event, 0, frame=UNKNOWN, flags=flags)[:6])
        for event in waiting:
            spill.add(WAITING, event, (event,))
        for number, (key, at) in enumerate(positions):
            spill.add(ORDER, key.encode(), (0, key.encode(), at, 0, f"event {number}", number))
        for facts in spill.buckets(WRITTEN, PUBLISHED, DEAD_LETTERS, WAITING, AHEAD):
            compare_events(facts, AbsenceContext(passed=False, is_behind=lambda each: each < horizon), found)
        for (ordered,) in spill.buckets(ORDER):
            check_order(ordered, found)

    statuses = Counter(
        "published" if any(event == each[0] for each in records)
        else "set_aside" if (event, 0) in letters
        else "discarded" if (event, DISCARDED) in letters
        else "parked" if event in waiting
        else "missing" if transaction < horizon
        else "not_yet"
        for event, _, transaction in rows
    )  # fmt: skip
    first_hand = Counter([event for event, _, flags in records if not flags] + [event for event, _ in letters])
    publications = Counter(event for event, _, flags in records if not flags & SECOND)
    digests = {event: digest for event, digest, _ in rows}
    defects = {
        "duplicated": sum(first_hand[event] > 1 or publications[event] > 1 for event in "abcdef"),
        "changed": sum(
            event in digests and digests[event] != digest and not flags & EDITED for event, digest, flags in records
        ),
        "key_changed": 0,
        "type_changed": 0,
        "wrong_partition": 0,
        "out_of_order": sum(
            any(other == key and before > at for other, before in positions[:number])
            for number, (key, at) in enumerate(positions)
        ),
    }
    assert +found.statuses == statuses
    assert {kind: found.defects[kind] for kind in RecordDefect} == defects
    assert found.only_on_kafka == len({each[0] for each in (*records, *letters)} - set(digests))
    assert found.again == sum(bool(flags) for _, _, flags in records)
