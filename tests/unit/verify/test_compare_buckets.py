"""The bulk comparison of buckets finds the same as the comparison event by event."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.verify.backend import AbsenceContext
from tailrace.verify.compare import compare_bucket, compare_events
from tailrace.verify.findings import AGAIN, DISCARDED, EDITED, OUTSIDE, REDRIVEN, SECOND, UNKNOWN, Findings
from tailrace.verify.fingerprints import PLAIN, Fingerprint, checksum, digest_of, of_payload, pack_record, pack_row

EVENTS = st.sampled_from(["a", "a", "b", "ä", "\udc80", ""])
SAME, UNCOMPARED = Fingerprint(0, 1), Fingerprint(UNKNOWN, 0)
FINGERPRINTS = st.sampled_from([SAME, SAME, SAME, Fingerprint(0, 2), Fingerprint(5, 1), UNCOMPARED])
FLAGS = st.sampled_from([0, 0, 0, 0, AGAIN, AGAIN | EDITED, AGAIN | SECOND, OUTSIDE])
NOTHING: Any = {"letters": [], "waiting": [], "ahead": [], "as_text": False, "odd": 9}
CHECKSUMS, OTHERS = (number.to_bytes(4, "little") + (2).to_bytes(4, "little") for number in (1, 2))
"""Checksums of key and type; the second ones are of another key."""


def _is_old(topic: int, key: bytes | None, created_ms: int) -> bool:
    return (topic, key) == (7, b"k") and created_ms < 50


@given(
    rows=st.lists(st.tuples(EVENTS, FINGERPRINTS, st.integers(0, 3), st.integers(-1, 60)), max_size=8),
    records=st.lists(st.tuples(EVENTS, FINGERPRINTS, FLAGS), max_size=8),
    letters=st.lists(st.tuples(EVENTS, FINGERPRINTS, st.sampled_from([0, REDRIVEN, DISCARDED])), max_size=3),
    waiting=st.lists(EVENTS, max_size=2),
    ahead=st.lists(EVENTS, max_size=2),
    as_text=st.booleans(),
    odd=st.integers(0, 9),
)
@example(rows=[("a", SAME, 0, 0)], records=[("a", SAME, 0)] * 2, **NOTHING)
@example(rows=[("a", SAME, 0, 0)] * 2, records=[("a", SAME, 0)], **NOTHING)
@example(rows=[("a", UNCOMPARED, 0, 0)], records=[("a", UNCOMPARED, 0)], **NOTHING)
@example(rows=[("a", SAME, 0, 0)], records=[("a", SAME, 0)], **{**NOTHING, "letters": [("a", SAME, 0)]})
@example(rows=[("a", SAME, 0, 0)], records=[("a", SAME, 0), ("a", Fingerprint(0, 2), 0)], **NOTHING)
def test_the_bulk_comparison_agrees_with_the_comparison_of_events(
    rows: list[Any],
    records: list[Any],
    letters: list[Any],
    waiting: list[str],
    ahead: list[str],
    as_text: bool,
    odd: int,
) -> None:
    context = AbsenceContext(passed=False, is_behind=lambda each: each < 2, may_be_deleted=_is_old)
    written: list[Any] = []
    published: list[Any] = []
    for event, taken, transaction, created in rows:
        # COPY delivers numbers as text.
        given = (b"%d" % transaction, b"%d" % created) if as_text else (transaction, created)
        written += (pack_row(event, taken, CHECKSUMS), *given, 7, b"k")
    for offset, (event, taken, flags) in enumerate(records):
        checksums = OTHERS if offset == odd else CHECKSUMS
        published += (
            pack_record(event.encode("utf-8", "surrogatepass"), taken, flags, checksums),
            3,
            offset,
        )
    dead_letters = [(event, *taken, flags, 4, number) for number, (event, taken, flags) in enumerate(letters)]
    others = dead_letters, [(event,) for event in waiting], [(event,) for event in ahead]
    found, expected = Findings(), Findings()
    compare_bucket(written, published, others, context, found)
    compare_events(
        [
            [(event, *taken, transaction, created, 7, b"k", 1, 2) for event, taken, transaction, created in rows],
            [
                (event, *taken, flags, 3, offset, 1 + (offset == odd), 2)
                for offset, (event, taken, flags) in enumerate(records)
            ],
            *others,
        ],
        context,
        expected,
    )
    assert +found.statuses == +expected.statuses
    assert +found.defects == +expected.defects
    assert {kind: sorted(each) for kind, each in found.examples.items()} == {
        kind: sorted(each) for kind, each in expected.examples.items()
    }
    for name in ("rows", "records", "letters", "again", "not_compared", "only_on_kafka"):
        assert getattr(found, name) == getattr(expected, name), name


def test_the_inlined_fingerprint_of_plain_json_is_the_same() -> None:
    """Readers build the fingerprint of plain JSON themselves, for speed."""
    payload = b'{"a": 1}'
    short = PLAIN + digest_of(payload) + CHECKSUMS + b"a"
    assert pack_row("a", of_payload(payload), CHECKSUMS) == short
    assert pack_record(b"a", of_payload(payload), 0, CHECKSUMS) == short
    assert len({checksum(None), checksum(b""), checksum(b"a"), bytes(4)}) == 4


def test_findings_of_parts_add_up() -> None:
    parts = [Findings(), Findings()]
    for number, found in enumerate(parts):
        compare_bucket(
            [each for at in range(15) for each in (pack_row(f"{number}-{at}", of_payload(None)), 0, 0, 0, None)],
            [],
            ([], [], []),
            AbsenceContext(passed=True),
            found,
        )
    whole = Findings()
    for found in parts:
        whole.include(found)
    assert whole.rows == whole.statuses["missing"] == 30
    assert len(whole.examples["missing"]) == 20
