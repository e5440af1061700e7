"""The comparison itself: each row has one fate, each fault its name, and a naive model says the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.verify.compare import (
    AGAIN,
    AHEAD,
    DISCARDED,
    EDITED,
    IS_ROW,
    LETTERS,
    ORDER,
    OUTSIDE,
    PUBLISHED,
    REDRIVEN,
    SECOND,
    UNKNOWN,
    UNSAID,
    WAITING,
    WRITTEN,
    AbsenceContext,
    Findings,
    RecordDefect,
    check_order,
    compare_events,
)
from tailrace.verify.spill import SpillFile

PASSED = AbsenceContext(passed=True)


def row(
    event: str, digest: int = 7, *, transaction: int = 0, created_ms: int = 50, frame: int = 0,
    labels: tuple[int, int] = (5, 6),
) -> tuple[Any, ...]:  # fmt: skip
    return event, frame, digest, transaction, created_ms, 0, b"k", *labels


def record(
    event: str, digest: int = 7, *, flags: int = 0, frame: int = 0, offset: int = 0, labels: tuple[int, int] = (5, 6)
) -> tuple[Any, ...]:
    """Of a letter, too: that has no labels."""
    return event, frame, digest, flags, 0, offset, *labels


def judged(
    rows: list[Any], records: list[Any], letters: list[Any] = [], waiting: list[Any] = [], ahead: list[Any] = [],  # noqa: B006 - never changed
    *, ground: AbsenceContext = PASSED,
) -> Findings:  # fmt: skip
    found = Findings()
    compare_events([rows, records, [letter[:6] for letter in letters], waiting, ahead], ground, found)
    return found


def test_what_is_there_is_published() -> None:
    found = judged([row("a"), row("b")], [record("a"), record("b"), record("purged")])
    assert (found.rows, found.records, found.only_on_kafka) == (2, 3, 1)
    assert found.fates == {"published": 2}
    assert not found.flaws
    assert found.absent == 0


@pytest.mark.parametrize(
    ("flags", "fate"),
    [
        (0, "set_aside"),
        (DISCARDED, "discarded"),
        (REDRIVEN, "missing"),  # its mark says that there is a record
        (REDRIVEN | IS_ROW, "redriven"),
        (DISCARDED | IS_ROW, "discarded"),
        (IS_ROW, "set_aside"),
    ],
)
def test_what_became_of_a_letter(flags: int, fate: str) -> None:
    assert judged([row("a")], [], [record("a", flags=flags)]).fates == {fate: 1}


def test_a_letter_of_a_replay_is_no_second_sighting() -> None:
    found = judged(
        [row("a"), row("b")], [record("a")], [record("a", flags=AGAIN), record("b"), record("b", flags=AGAIN)]
    )
    assert found.fates == {"published": 1, "set_aside": 1}
    assert not found.flaws


def test_a_letter_that_was_redriven_is_published_once() -> None:
    found = judged([row("a")], [record("a", flags=AGAIN)], [record("a", flags=REDRIVEN)])
    assert found.fates == {"published": 1}
    assert found.again == 1
    assert not found.flaws


def test_a_letter_and_a_record_of_one_event_are_one_too_many() -> None:
    assert judged([row("a")], [record("a")], [record("a")]).flaws == {"duplicated": 1}


def test_what_is_published_again_on_purpose_is_no_duplicate() -> None:
    records = [record("a"), record("a", flags=AGAIN | SECOND), record("a", flags=AGAIN | SECOND)]
    assert not judged([row("a")], records).flaws
    assert judged([row("a")], [*records, record("a", offset=9)]).examples["duplicated"][0].offset == 9


def test_the_redrive_of_a_letter_is_the_only_publication_without_a_replays_header() -> None:
    redriven, replayed = record("a", flags=AGAIN, offset=8), record("a", flags=AGAIN | SECOND, offset=9)
    letter = record("a", flags=REDRIVEN)
    assert not judged([row("a")], [redriven, replayed, replayed], [letter]).flaws
    for rows in ([row("a")], []):
        found = judged(rows, [redriven, replayed, redriven], [letter])
        assert found.flaws == {"duplicated": 1}
        assert found.examples["duplicated"][0].offset == 8
        assert judged(rows, [record("a"), redriven]).flaws == {"duplicated": 1}
    assert not judged([row("a"), row("a")], [redriven, redriven], [letter, letter]).flaws


def test_rows_of_one_id_may_be_published_as_often() -> None:
    rows = [row("a", 1), row("a", 2), row("a", 3)]
    records = [record("a", digest) for digest in (1, 2, 3)]
    assert not judged(rows, records).flaws
    assert judged(rows, [*records, record("a", 1)]).flaws == {"duplicated": 1}
    assert judged(rows, [*records[:2], record("a", 4)]).flaws == {"changed": 1}


def test_every_row_of_one_id_needs_a_record() -> None:
    rows = [row("a", 1, transaction=number) for number in (1, 2, 3)]
    assert judged(rows, [record("a", 1)]).fates == {"published": 1, "missing": 2}
    # A replay publishes again what was published.
    assert judged(rows, [record("a", 1), *[record("a", 1, flags=AGAIN)] * 2]).fates == {"published": 1, "missing": 2}
    assert judged(rows, [record("a", 1, flags=AGAIN)]).fates == {"published": 1, "missing": 2}
    letters = [record("a", 1), record("a", 1, flags=DISCARDED)]
    assert judged(rows, [record("a", 1)], letters).fates == {"published": 1, "set_aside": 1, "discarded": 1}
    redriven = [record("a", 1, flags=REDRIVEN)] * 2
    records = [record("a", 1), *[record("a", 1, flags=AGAIN)] * 2]
    assert judged(rows, records, redriven).fates == {"published": 3}
    later = judged(rows, [record("a", 1)], waiting=[("a",)], ahead=[("a",)])
    assert later.fates == {"published": 1, "parked": 1, "not_yet": 1}
    behind = AbsenceContext(passed=False, is_behind=lambda transaction: transaction != 2)
    assert judged(rows, [record("a", 1)] * 2, ground=behind).fates == {"published": 2, "not_yet": 1}


def test_keys_and_types() -> None:
    assert judged([row("a")], [record("a", labels=(9, 6))]).flaws == {"key_changed": 1}
    assert judged([row("a")], [record("a", labels=(5, 9))]).flaws == {"type_changed": 1}
    assert not judged([row("a", labels=(UNSAID, UNSAID))], [record("a")]).flaws, "today's rules make no record of it"
    assert not judged([row("a")], [record("a", 2, labels=(9, 9), flags=AGAIN | EDITED)]).flaws
    both = [row("a", labels=(1, 6)), row("a", labels=(2, 6))]
    assert not judged(both, [record("a", labels=(1, 6)), record("a", labels=(2, 6))]).flaws


def test_purged_rows_do_not_hide_duplicates() -> None:
    assert judged([], [record("a"), record("a")]).flaws == {"duplicated": 1}


def test_payloads() -> None:
    assert judged([row("a", 1)], [record("a", 2)]).flaws == {"changed": 1}
    assert judged([row("a", 1)], [], [record("a", 2)]).flaws == {"changed": 1}
    assert not judged([row("a", 1)], [record("a", 2, flags=AGAIN | EDITED)]).flaws
    assert judged([row("a", 1)], [record("a", 2, flags=AGAIN)]).flaws == {"changed": 1}


@pytest.mark.parametrize(("of_row", "of_record"), [(1, 2), (UNKNOWN, 0), (0, UNKNOWN), (UNKNOWN, UNKNOWN)])
def test_what_cannot_be_compared_is_counted(of_row: int, of_record: int) -> None:
    found = judged([row("a", 1, frame=of_row)], [record("a", 2, frame=of_record)])
    assert found.not_compared == 1
    assert not found.flaws


def test_absent_rows() -> None:
    def fate(ground: AbsenceContext, **known: Any) -> str:
        (found,) = judged([row("a", transaction=5, created_ms=50)], [], ground=ground, **known).fates
        return found

    assert fate(PASSED) == "missing"
    assert fate(AbsenceContext(passed=False)) == "not_yet"
    assert fate(AbsenceContext(passed=False, is_behind=lambda transaction: transaction < 5)) == "not_yet"
    assert fate(AbsenceContext(passed=False, is_behind=lambda transaction: transaction < 6)) == "missing"
    assert fate(PASSED, ahead=[("a",)]) == "not_yet"
    assert fate(PASSED, waiting=[("a",)]) == "parked"
    assert fate(AbsenceContext(passed=True, may_be_deleted=lambda *what: what == (0, b"k", 50))) == "expired"
    assert fate(AbsenceContext(passed=True, may_be_deleted=lambda *what: what != (0, b"k", 50))) == "missing"
    assert fate(AbsenceContext(passed=False, may_be_deleted=lambda *_: True)) == "not_yet"


def test_rows_from_before_the_first_start() -> None:
    rows = [row("a", transaction=1), row("b", transaction=5), row("c", transaction=1), row("d", transaction=1)]
    for passed in (True, False):
        ground = AbsenceContext(passed, is_before=lambda transaction, created_ms: transaction < 2 and created_ms == 50)
        found = judged(rows, [record("c")], ahead=[("d",)], ground=ground)
        fates = {"before_start": 1, "published": 1, "not_yet": 1 if passed else 2}
        assert +found.fates == fates | ({"missing": 1} if passed else {})
        assert found.absent == 2, "for what was there before nobody need wait"


def test_a_row_without_a_time_is_not_called_old() -> None:
    found = judged(
        [row("a", created_ms=UNKNOWN)], [], ground=AbsenceContext(passed=True, may_be_deleted=lambda *_: True)
    )
    assert found.fates == {"missing": 1}


def test_outside_of_the_window_only_rows_count() -> None:
    outside = [record("a", flags=OUTSIDE), record("b", flags=OUTSIDE), record("b", flags=OUTSIDE)]
    found = judged([row("a")], outside)
    assert found.fates == {"published": 1}
    assert (found.records, found.only_on_kafka, found.flaws.total()) == (1, 0, 0)


def test_few_examples_of_many() -> None:
    found = judged([row(str(number)) for number in range(100)], [])
    assert found.fates == {"missing": 100}
    assert len(found.examples["missing"]) == 20
    assert found.examples["missing"][0] == ("0", 0, 50, UNKNOWN, UNKNOWN)


def in_order(*records: tuple[int, str, int, str]) -> list[str]:
    """Of (place, key, position, event): those out of order."""
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
def test_as_a_naive_model_says(
    rows: list[tuple[str, int, int]],
    records: list[tuple[str, int, int]],
    letters: list[tuple[str, int]],
    waiting: set[str],
    horizon: int,
    positions: list[tuple[str, int]],
) -> None:
    """Through the spool, with so little memory that everything goes to disk, in pieces."""
    found = Findings()
    with SpillFile(6, buckets=3, pending=2) as spool:
        for event, digest, transaction in rows:
            spool.add(WRITTEN, event, row(event, digest, transaction=transaction))
        for event, digest, flags in records:
            spool.add(PUBLISHED, event, record(event, digest, flags=flags))
        for event, flags in letters:
            spool.add(LETTERS, event, record(event, 0, frame=UNKNOWN, flags=flags)[:6])
        for event in waiting:
            spool.add(WAITING, event, (event,))
        for number, (key, at) in enumerate(positions):
            spool.add(ORDER, key.encode(), (0, key.encode(), at, 0, f"event {number}", number))
        for facts in spool.buckets(WRITTEN, PUBLISHED, LETTERS, WAITING, AHEAD):
            compare_events(facts, AbsenceContext(passed=False, is_behind=lambda each: each < horizon), found)
        for (ordered,) in spool.buckets(ORDER):
            check_order(ordered, found)

    fates = Counter(
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
    flaws = {
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
    assert +found.fates == fates
    assert {kind: found.flaws[kind] for kind in RecordDefect} == flaws
    assert found.only_on_kafka == len({each[0] for each in (*records, *letters)} - set(digests))
    assert found.again == sum(bool(flags) for _, _, flags in records)
