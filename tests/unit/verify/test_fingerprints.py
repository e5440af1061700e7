"""Seals: what is settled in bulk is what the judge would have said of each event."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.verify import fingerprints
from tailrace.verify.compare import (
    AGAIN,
    DISCARDED,
    EDITED,
    OUTSIDE,
    REDRIVEN,
    SECOND,
    UNKNOWN,
    AbsenceContext,
    Findings,
    compare_events,
)
from tailrace.verify.value_fingerprint import Fingerprint, digest_of, of_payload

EVENTS = st.sampled_from(["a", "a", "b", "ä", "\udc80", ""])
SAME, UNTOLD = Fingerprint(0, 1), Fingerprint(UNKNOWN, 0)
PRINTS = st.sampled_from([SAME, SAME, SAME, Fingerprint(0, 2), Fingerprint(5, 1), UNTOLD])
FLAGS = st.sampled_from([0, 0, 0, 0, AGAIN, AGAIN | EDITED, AGAIN | SECOND, OUTSIDE])
NOTHING: Any = {"letters": [], "waiting": [], "ahead": [], "as_text": False, "odd": 9}
LABELS, OTHERS = (number.to_bytes(4, "little") + (2).to_bytes(4, "little") for number in (1, 2))
"""Of key and type; the second ones are of another key."""


def _is_old(topic: int, key: bytes | None, created_ms: int) -> bool:
    return (topic, key) == (7, b"k") and created_ms < 50


@given(
    rows=st.lists(st.tuples(EVENTS, PRINTS, st.integers(0, 3), st.integers(-1, 60)), max_size=8),
    records=st.lists(st.tuples(EVENTS, PRINTS, FLAGS), max_size=8),
    letters=st.lists(st.tuples(EVENTS, PRINTS, st.sampled_from([0, REDRIVEN, DISCARDED])), max_size=3),
    waiting=st.lists(EVENTS, max_size=2),
    ahead=st.lists(EVENTS, max_size=2),
    as_text=st.booleans(),
    odd=st.integers(0, 9),
)
@example(rows=[("a", SAME, 0, 0)], records=[("a", SAME, 0)] * 2, **NOTHING)
@example(rows=[("a", SAME, 0, 0)] * 2, records=[("a", SAME, 0)], **NOTHING)
@example(rows=[("a", UNTOLD, 0, 0)], records=[("a", UNTOLD, 0)], **NOTHING)
@example(rows=[("a", SAME, 0, 0)], records=[("a", SAME, 0)], **{**NOTHING, "letters": [("a", SAME, 0)]})
@example(rows=[("a", SAME, 0, 0)], records=[("a", SAME, 0), ("a", Fingerprint(0, 2), 0)], **NOTHING)
def test_as_the_judge_says(
    rows: list[Any],
    records: list[Any],
    letters: list[Any],
    waiting: list[str],
    ahead: list[str],
    as_text: bool,
    odd: int,
) -> None:
    ground = AbsenceContext(passed=False, is_behind=lambda each: each < 2, may_be_deleted=_is_old)
    written: list[Any] = []
    published: list[Any] = []
    for event, taken, transaction, created in rows:
        # COPY brings numbers as text.
        given = (b"%d" % transaction, b"%d" % created) if as_text else (transaction, created)
        written += (fingerprints.of_row(event, taken, LABELS), *given, 7, b"k")
    for offset, (event, taken, flags) in enumerate(records):
        labels = OTHERS if offset == odd else LABELS
        published += (fingerprints.of_record(event.encode("utf-8", "surrogatepass"), taken, flags, labels), 3, offset)
    beside = [(event, *taken, flags, 4, number) for number, (event, taken, flags) in enumerate(letters)]
    others = beside, [(event,) for event in waiting], [(event,) for event in ahead]
    found, expected = Findings(), Findings()
    fingerprints.compare_bucket(written, published, others, ground, found)
    compare_events(
        [
            [(event, *taken, transaction, created, 7, b"k", 1, 2) for event, taken, transaction, created in rows],
            [
                (event, *taken, flags, 3, offset, 1 + (offset == odd), 2)
                for offset, (event, taken, flags) in enumerate(records)
            ],
            *others,
        ],
        ground,
        expected,
    )
    assert +found.fates == +expected.fates
    assert +found.flaws == +expected.flaws
    assert {kind: sorted(each) for kind, each in found.examples.items()} == {
        kind: sorted(each) for kind, each in expected.examples.items()
    }
    for name in ("rows", "records", "letters", "again", "not_compared", "only_on_kafka"):
        assert getattr(found, name) == getattr(expected, name), name


def test_the_short_way_makes_the_same_seal() -> None:
    """Readers put together the seal of plain JSON by themselves."""
    payload = b'{"a": 1}'
    short = fingerprints.PLAIN + digest_of(payload) + LABELS + b"a"
    assert fingerprints.of_row("a", of_payload(payload), LABELS) == short
    assert fingerprints.of_record(b"a", of_payload(payload), 0, LABELS) == short
    assert len({fingerprints.label(None), fingerprints.label(b""), fingerprints.label(b"a"), bytes(4)}) == 4


def test_findings_of_parts_are_findings_of_the_whole() -> None:
    parts = [Findings(), Findings()]
    for number, found in enumerate(parts):
        fingerprints.compare_bucket(
            [
                each
                for at in range(15)
                for each in (fingerprints.of_row(f"{number}-{at}", of_payload(None)), 0, 0, 0, None)
            ],
            [],
            ([], [], []),
            AbsenceContext(passed=True),
            found,
        )
    whole = Findings()
    for found in parts:
        whole.include(found)
    assert whole.rows == whole.fates["missing"] == 30
    assert len(whole.examples["missing"]) == 20
