"""The oracle: each kind of error has its list, and every change of a correct history is found."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.positions.base import Progress
from tailrace.testkit.oracle import (
    ConsumedRecord,
    Histories,
    OracleVerdict,
    WriteOutcome,
    WrittenEvent,
    backward_positions,
    check_delivery,
    check_projection,
    expected_histories,
)

TOPIC, DEAD_LETTERS = "orders", "dead-letters"


def written_event(
    event: str,
    key: str = "k",
    seq: int = 1,
    *,
    valid: bool = True,
    outcome: WriteOutcome = WriteOutcome.COMMITTED,
) -> WrittenEvent:
    return WrittenEvent(event, key, seq, valid, outcome)


def record(event: str, key: str = "k", offset: int = 0, *, topic: str = TOPIC, partition: int = 0) -> ConsumedRecord:
    return ConsumedRecord(event, key, topic, partition, offset)


def errors_of(verdict: OracleVerdict) -> set[str]:
    """Returns the names of the lists that are not empty."""
    return {name for name, value in vars(verdict).items() if isinstance(value, list) and value}


def test_a_correct_history_is_ok() -> None:
    verdict = check_delivery(
        [
            written_event("a", seq=1),
            written_event("b", seq=2),
            written_event("c", seq=3, valid=False),
            written_event("d", outcome=WriteOutcome.ROLLED_BACK),
        ],
        [record("a", offset=0), record("b", offset=5)],
        [record("c", topic=DEAD_LETTERS)],
    )
    assert verdict.ok
    assert verdict.summary() == {
        "committed": 3, "rolled_back": 1, "published": 2, "dead_lettered": 1, "missing": 0, "duplicated": 0,
        "phantom": 0, "misplaced": 0, "out_of_order": 0, "positions": 0, "ok": True,
    }  # fmt: skip


def test_an_empty_history_is_ok() -> None:
    assert check_delivery([], []).ok


@pytest.mark.parametrize(
    ("written", "published", "dead_letters", "kind"),
    [
        ([written_event("a")], [], [], "missing"),
        ([written_event("a")], [record("a"), record("a", offset=1)], [], "duplicated"),
        ([written_event("a", valid=False)], [], [record("a"), record("a", offset=1)], "duplicated"),
        ([], [record("a")], [], "phantom"),
        ([], [], [record("a")], "phantom"),
        ([written_event("a", outcome=WriteOutcome.ROLLED_BACK)], [record("a")], [], "phantom"),
        ([written_event("a", valid=False)], [record("a")], [], "misplaced"),
        ([written_event("a")], [], [record("a")], "misplaced"),
        (
            [written_event("a", seq=1), written_event("b", seq=2)],
            [record("b", offset=0), record("a", offset=1)],
            [],
            "out_of_order",
        ),
        (
            [written_event("a", seq=1), written_event("b", seq=2)],
            [record("a"), record("b", partition=1)],
            [],
            "out_of_order",
        ),
    ],
)
def test_each_error_has_its_list(
    written: list[WrittenEvent], published: list[ConsumedRecord], dead_letters: list[ConsumedRecord], kind: str
) -> None:
    verdict = check_delivery(written, published, dead_letters)
    assert errors_of(verdict) == {kind}
    assert not verdict.ok
    assert kind in str(verdict)


def test_an_event_that_is_published_and_dead_lettered_is_duplicated() -> None:
    assert "duplicated" in errors_of(
        check_delivery([written_event("a")], [record("a")], [record("a", topic=DEAD_LETTERS)])
    )


def test_events_of_different_keys_have_no_order() -> None:
    written = [written_event("a", "one", 1), written_event("b", "two", 1), written_event("c", "one", 2)]
    assert check_delivery(written, [record("b", "two", 0), record("a", "one", 1), record("c", "one", 2)]).ok


def test_order_follows_offsets_not_the_order_of_reading() -> None:
    assert check_delivery(
        [written_event("a", seq=1), written_event("b", seq=2)], [record("b", offset=1), record("a", offset=0)]
    ).ok


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
def test_the_table_decides_an_unknown_outcome(in_table: set[str] | None, published: bool, kinds: set[str]) -> None:
    written = [written_event("a", outcome=WriteOutcome.UNKNOWN)]
    assert errors_of(check_delivery(written, [record("a")] if published else [], in_table=in_table)) == kinds


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
def test_positions_that_go_backward_are_reported(positions: list[Progress], found: int) -> None:
    assert len(backward_positions(positions)) == found


def test_a_backward_position_fails_the_verdict() -> None:
    verdict = check_delivery([], [])
    verdict.positions = ["back"]
    assert not verdict.ok


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[WrittenEvent], list[ConsumedRecord], list[ConsumedRecord]]:
    """Draws what a correct connector publishes: each key has one partition, offsets grow with gaps."""
    written: list[WrittenEvent] = []
    counts: Counter[str] = Counter()
    for number in range(draw(st.integers(1, 25))):
        key = draw(st.sampled_from(["a", "b", "c"]))
        outcome = draw(st.sampled_from([WriteOutcome.COMMITTED, WriteOutcome.COMMITTED, WriteOutcome.ROLLED_BACK]))
        counts[key] += 1
        written.append(WrittenEvent(f"e{number}", key, counts[key], draw(st.booleans()), outcome))
    published: list[ConsumedRecord] = []
    dead_letters: list[ConsumedRecord] = []
    offset = 0
    for made in written:
        if made.outcome is WriteOutcome.COMMITTED:
            offset += draw(st.integers(1, 3))
            if made.valid:
                published.append(ConsumedRecord(made.id, made.key, TOPIC, ord(made.key) % 2, offset))
            else:
                dead_letters.append(ConsumedRecord(made.id, made.key, DEAD_LETTERS, 0, offset))
    return written, published, dead_letters


@given(histories(), st.randoms(use_true_random=False))
def test_every_correct_history_is_ok_in_any_order_of_reading(
    history: tuple[list[WrittenEvent], list[ConsumedRecord], list[ConsumedRecord]], chance: object
) -> None:
    written, published, dead_letters = history
    chance.shuffle(published)  # type: ignore[attr-defined]
    assert check_delivery(written, published, dead_letters).ok


@given(histories(), st.data())
def test_every_change_of_a_correct_history_is_found(
    history: tuple[list[WrittenEvent], list[ConsumedRecord], list[ConsumedRecord]], data: st.DataObject
) -> None:
    written, published, dead_letters = history
    behind = max((record.offset for record in (*published, *dead_letters)), default=0) + 1
    pairs = [
        (one, other)
        for one in range(len(published))
        for other in range(one + 1, len(published))
        if published[one].key == published[other].key
    ]
    changes = ["insert"]
    if published:
        changes += ["drop", "duplicate", "to dead letters", "to another partition"]
    if dead_letters:
        changes += ["drop dead letter", "publish dead letter"]
    if pairs:
        changes += ["swap"]
    change = data.draw(st.sampled_from(changes))
    if change == "insert":
        rolled_back = [made.id for made in written if made.outcome is WriteOutcome.ROLLED_BACK]
        published.append(record(data.draw(st.sampled_from(["unknown", *rolled_back])), "a", behind))
        expected = "phantom"
    elif change == "swap":
        one, other = data.draw(st.sampled_from(pairs))
        first, second = published[one], published[other]
        published[one], published[other] = first._replace(offset=second.offset), second._replace(offset=first.offset)
        expected = "out_of_order"
    elif change in ("drop dead letter", "publish dead letter"):
        moved = dead_letters.pop(data.draw(st.integers(0, len(dead_letters) - 1)))
        if change == "publish dead letter":
            published.append(moved._replace(topic=TOPIC, offset=behind))
        expected = "missing" if change == "drop dead letter" else "misplaced"
    else:
        at = data.draw(st.integers(0, len(published) - 1))
        event = published[at]
        if change == "duplicate":
            published.append(event._replace(offset=behind))
            expected = "duplicated"
        elif change == "drop":
            del published[at]
            expected = "missing"
        elif change == "to dead letters":
            dead_letters.append(published.pop(at)._replace(topic=DEAD_LETTERS))
            expected = "misplaced"
        else:
            published[at] = event._replace(partition=event.partition + 2)
            alone = [other for other in published if other.key == event.key] == [published[at]]
            expected = "" if alone else "out_of_order"
    verdict = check_delivery(written, published, dead_letters)
    if expected:
        assert expected in errors_of(verdict)
        assert not verdict.ok
    else:
        assert verdict.ok, "a single event of a key may be on any partition"


EXPECTED = {"a": ["a1", "a2", "a3"], "b": ["b1"]}
ERRORS = ("missing", "twice", "phantom", "out_of_order")


def test_expected_histories_follow_offsets_not_the_order_of_reading() -> None:
    published = [
        ConsumedRecord("a2", "a", "orders", 0, 7),
        ConsumedRecord("b1", "b", "orders", 1, 3),
        ConsumedRecord("a1", "a", "orders", 0, 5),
        ConsumedRecord("a1", "a", "orders", 0, 9),
        ConsumedRecord("a3", "a", "orders", 0, 10),
    ]
    assert expected_histories(published) == EXPECTED


def test_a_projection_with_the_expected_histories_is_ok() -> None:
    comparison = check_projection(EXPECTED, {"b": ["b1"], "a": ["a1", "a2", "a3"]})
    assert comparison.ok
    assert (comparison.events, comparison.applied) == (4, 4)


@pytest.mark.parametrize(
    ("found", "errors"),
    [
        ({"a": ["a1", "a2", "a3"]}, {"missing": ["b1"]}),
        ({"a": ["a1", "a3"], "b": ["b1"]}, {"missing": ["a2"]}),
        ({"a": ["a1", "a1", "a2", "a3"], "b": ["b1"]}, {"twice": ["a1"]}),
        ({"a": ["a1", "a2", "a3", "a1", "a1"], "b": ["b1"]}, {"twice": ["a1"]}),
        ({"a": ["a1", "a2", "a3", "a4"], "b": ["b1"]}, {"phantom": ["a4"]}),
        ({"a": ["a1", "a2", "a3"], "b": ["b1"], "c": ["c1"]}, {"phantom": ["c1"]}),
        ({"a": ["a1", "a2", "a3", "b1"]}, {"missing": ["b1"], "phantom": ["b1"]}),
        ({"a": ["a2", "a1", "a3"], "b": ["b1"]}, {"out_of_order": ["a1"]}),
        ({"a": ["a3", "a1", "a2"], "b": ["b1"]}, {"out_of_order": ["a1", "a2"]}),
        ({"a": ["a2", "a1", "a1"], "b": ["b1"]}, {"missing": ["a3"], "twice": ["a1"], "out_of_order": ["a1"]}),
    ],
)
def test_each_error_of_a_projection_has_its_list(found: Histories, errors: dict[str, list[str]]) -> None:
    comparison = check_projection(EXPECTED, found)
    assert not comparison.ok
    assert {name: ids for name in ERRORS if (ids := getattr(comparison, name))} == errors
    assert (comparison.events, comparison.applied) == (4, sum(map(len, found.values())))


EVENTS = st.lists(st.sampled_from("uvwxyz"), max_size=5)


@given(
    expected=st.dictionaries(st.sampled_from("abc"), EVENTS.map(lambda ids: list(dict.fromkeys(ids)))),
    found=st.dictionaries(st.sampled_from("abc"), EVENTS),
)
def test_a_projection_is_ok_only_with_the_expected_histories(expected: Histories, found: Histories) -> None:
    def rows(histories: Histories) -> Histories:
        return {key: ids for key, ids in histories.items() if ids}

    assert check_projection(expected, found).ok == (rows(expected) == rows(found))
