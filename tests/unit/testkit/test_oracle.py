"""The oracle itself: every way to be wrong has its list, and no change of a correct history goes unseen."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.positions.base import Progress
from tailrace.testkit.oracle import (
    ConsumedRecord,
    OracleVerdict,
    WriteOutcome,
    WrittenEvent,
    backward_positions,
    check_delivery,
)

TOPIC, LETTERS = "orders", "letters"


def entry(
    event: str,
    key: str = "k",
    seq: int = 1,
    *,
    valid: bool = True,
    outcome: WriteOutcome = WriteOutcome.COMMITTED,
) -> WrittenEvent:
    return WrittenEvent(event, key, seq, valid, outcome)


def seen(event: str, key: str = "k", offset: int = 0, *, topic: str = TOPIC, partition: int = 0) -> ConsumedRecord:
    return ConsumedRecord(event, key, topic, partition, offset)


def wrong(verdict: OracleVerdict) -> set[str]:
    """The names of the lists that are not empty."""
    return {name for name, value in vars(verdict).items() if isinstance(value, list) and value}


def test_a_correct_history_is_ok() -> None:
    verdict = check_delivery(
        [
            entry("a", seq=1),
            entry("b", seq=2),
            entry("c", seq=3, valid=False),
            entry("d", outcome=WriteOutcome.ROLLED_BACK),
        ],
        [seen("a", offset=0), seen("b", offset=5)],
        [seen("c", topic=LETTERS)],
    )
    assert verdict.ok
    assert verdict.summary() == {
        "committed": 3, "rolled_back": 1, "published": 2, "dead_lettered": 1, "missing": 0, "duplicated": 0,
        "phantom": 0, "misplaced": 0, "out_of_order": 0, "positions": 0, "ok": True,
    }  # fmt: skip


def test_nothing_is_ok() -> None:
    assert check_delivery([], []).ok


@pytest.mark.parametrize(
    ("written", "published", "letters", "kind"),
    [
        ([entry("a")], [], [], "missing"),
        ([entry("a")], [seen("a"), seen("a", offset=1)], [], "duplicated"),
        ([entry("a", valid=False)], [], [seen("a"), seen("a", offset=1)], "duplicated"),
        ([], [seen("a")], [], "phantom"),
        ([], [], [seen("a")], "phantom"),
        ([entry("a", outcome=WriteOutcome.ROLLED_BACK)], [seen("a")], [], "phantom"),
        ([entry("a", valid=False)], [seen("a")], [], "misplaced"),
        ([entry("a")], [], [seen("a")], "misplaced"),
        ([entry("a", seq=1), entry("b", seq=2)], [seen("b", offset=0), seen("a", offset=1)], [], "out_of_order"),
        ([entry("a", seq=1), entry("b", seq=2)], [seen("a"), seen("b", partition=1)], [], "out_of_order"),
    ],
)
def test_each_way_to_be_wrong_has_its_list(
    written: list[WrittenEvent], published: list[ConsumedRecord], letters: list[ConsumedRecord], kind: str
) -> None:
    verdict = check_delivery(written, published, letters)
    assert wrong(verdict) == {kind}
    assert not verdict.ok
    assert kind in str(verdict)


def test_an_event_in_both_places_is_duplicated() -> None:
    assert "duplicated" in wrong(check_delivery([entry("a")], [seen("a")], [seen("a", topic=LETTERS)]))


def test_keys_have_no_order_among_each_other() -> None:
    written = [entry("a", "one", 1), entry("b", "two", 1), entry("c", "one", 2)]
    assert check_delivery(written, [seen("b", "two", 0), seen("a", "one", 1), seen("c", "one", 2)]).ok


def test_order_is_that_of_offsets_not_of_reading() -> None:
    assert check_delivery([entry("a", seq=1), entry("b", seq=2)], [seen("b", offset=1), seen("a", offset=0)]).ok


@pytest.mark.parametrize(
    ("in_table", "published", "kinds"),
    [
        ({"a"}, True, set()),
        ({"a"}, False, {"missing"}),
        (set(), True, {"phantom"}),
        (set(), False, set()),
        (None, False, set()),
    ],
)
def test_an_unknown_outcome_is_settled_by_the_table(
    in_table: set[str] | None, published: bool, kinds: set[str]
) -> None:
    written = [entry("a", outcome=WriteOutcome.UNKNOWN)]
    assert wrong(check_delivery(written, [seen("a")] if published else [], in_table=in_table)) == kinds


@pytest.mark.parametrize(
    ("positions", "found"),
    [
        ([], 0),
        ([(2, 5, 0)], 0),
        ([(0, 0, 0), (1, 7, 0), (2, 7, 0), (2, 7, 3), (2, 9, 0), (2, 9, 0)], 0),
        ([(2, 9, 0), (2, 8, 4)], 1),
        ([(2, 9, 4), (2, 9, 3)], 1),
        ([(2, 9, 0), (1, 10, 0)], 1),
        ([(2, 9, 0), (2, 8, 0), (2, 9, 0), (2, 7, 0)], 2),
        ([(0, "000000000", 500), (0, "000000001", 3), (1, "8265A1", 0), (1, "8265A2", 0)], 0),
        ([(1, "8265A2", 0), (1, "8265A1", 0)], 1),
        ([(1, "8265A2", 0), (0, "000000001", 7)], 1),
    ],
)
def test_positions_only_go_forward(positions: list[Progress], found: int) -> None:
    assert len(backward_positions(positions)) == found


def test_positions_turn_a_verdict_red() -> None:
    verdict = check_delivery([], [])
    verdict.positions = ["back"]
    assert not verdict.ok


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[WrittenEvent], list[ConsumedRecord], list[ConsumedRecord]]:
    """What a correct connector publishes: a key has one partition, offsets grow with gaps."""
    written: list[WrittenEvent] = []
    counts: Counter[str] = Counter()
    for number in range(draw(st.integers(1, 25))):
        key = draw(st.sampled_from(["a", "b", "c"]))
        outcome = draw(st.sampled_from([WriteOutcome.COMMITTED, WriteOutcome.COMMITTED, WriteOutcome.ROLLED_BACK]))
        counts[key] += 1
        written.append(WrittenEvent(f"e{number}", key, counts[key], draw(st.booleans()), outcome))
    published: list[ConsumedRecord] = []
    letters: list[ConsumedRecord] = []
    offset = 0
    for made in written:
        if made.outcome is WriteOutcome.COMMITTED:
            offset += draw(st.integers(1, 3))
            if made.valid:
                published.append(ConsumedRecord(made.id, made.key, TOPIC, ord(made.key) % 2, offset))
            else:
                letters.append(ConsumedRecord(made.id, made.key, LETTERS, 0, offset))
    return written, published, letters


@given(histories(), st.randoms(use_true_random=False))
def test_every_correct_history_is_ok_in_any_order_of_reading(
    history: tuple[list[WrittenEvent], list[ConsumedRecord], list[ConsumedRecord]], chance: object
) -> None:
    written, published, letters = history
    chance.shuffle(published)  # type: ignore[attr-defined]
    assert check_delivery(written, published, letters).ok


@given(histories(), st.data())
def test_every_change_of_a_correct_history_is_seen(
    history: tuple[list[WrittenEvent], list[ConsumedRecord], list[ConsumedRecord]], data: st.DataObject
) -> None:
    written, published, letters = history
    behind = max((sighting.offset for sighting in (*published, *letters)), default=0) + 1
    pairs = [
        (one, other)
        for one in range(len(published))
        for other in range(one + 1, len(published))
        if published[one].key == published[other].key
    ]
    changes = ["insert"]
    if published:
        changes += ["drop", "duplicate", "to letters", "to another partition"]
    if letters:
        changes += ["drop letter", "publish letter"]
    if pairs:
        changes += ["swap"]
    change = data.draw(st.sampled_from(changes))
    if change == "insert":
        rolled_back = [made.id for made in written if made.outcome is WriteOutcome.ROLLED_BACK]
        published.append(seen(data.draw(st.sampled_from(["unknown", *rolled_back])), "a", behind))
        expected = "phantom"
    elif change == "swap":
        one, other = data.draw(st.sampled_from(pairs))
        first, second = published[one], published[other]
        published[one], published[other] = first._replace(offset=second.offset), second._replace(offset=first.offset)
        expected = "out_of_order"
    elif change in ("drop letter", "publish letter"):
        letter = letters.pop(data.draw(st.integers(0, len(letters) - 1)))
        if change == "publish letter":
            published.append(letter._replace(topic=TOPIC, offset=behind))
        expected = "missing" if change == "drop letter" else "misplaced"
    else:
        at = data.draw(st.integers(0, len(published) - 1))
        event = published[at]
        if change == "duplicate":
            published.append(event._replace(offset=behind))
            expected = "duplicated"
        elif change == "drop":
            del published[at]
            expected = "missing"
        elif change == "to letters":
            letters.append(published.pop(at)._replace(topic=LETTERS))
            expected = "misplaced"
        else:
            published[at] = event._replace(partition=event.partition + 2)
            alone = [other for other in published if other.key == event.key] == [published[at]]
            expected = "" if alone else "out_of_order"
    verdict = check_delivery(written, published, letters)
    if expected:
        assert expected in wrong(verdict)
        assert not verdict.ok
    else:
        assert verdict.ok, "a single event of a key may be on any partition"
