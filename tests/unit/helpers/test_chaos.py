"""The schedule of chaos runs, and the comparison at their end: it must see what the oracle sees, and accept moves."""

from __future__ import annotations

import pytest

from helpers.chaos.comparison import Published, check_pipeline, expected_histories, out_of_order
from helpers.chaos.run import INJECTORS
from helpers.chaos.schedule import CHAPTER_SECONDS, FAULTS, Lane, plan
from tailrace.testkit.oracle import ConsumedRecord, WriteOutcome, WrittenEvent

SEED = 11


def written(event: str, seq: int, *, key: str = "k", valid: bool = True) -> WrittenEvent:
    return WrittenEvent(event, key, seq, valid, WriteOutcome.COMMITTED)


def record(event: str, offset: int, *, key: str = "k", partition: int = 0) -> ConsumedRecord:
    return ConsumedRecord(event, key, "t", partition, offset)


EVENTS = [written("a", 1), written("b", 2), written("c", 3)]


def test_a_seed_has_one_schedule() -> None:
    assert plan(SEED, 4) == plan(SEED, 4)
    assert plan(SEED, 4) != plan(SEED + 1, 4)


def test_a_long_run_has_every_fault_with_every_target() -> None:
    planned = [fault for faults in plan(SEED, 12) for fault in faults]
    found = {(fault.kind, fault.target) for fault in planned}
    wanted = {(kind, target) for lane in FAULTS.values() for kind, targets in lane.items() for target in targets}
    assert wanted <= found
    assert {fault.kind for fault in planned} == set(INJECTORS)


def test_faults_are_in_order_and_inside_of_their_chapter() -> None:
    for faults in plan(SEED, 5):
        assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
        assert all(0 <= fault.at <= CHAPTER_SECONDS for fault in faults)
        assert {fault.lane for fault in faults} == {lane.value for lane in Lane}


@pytest.mark.parametrize(
    ("records", "growths", "wrong"),
    [
        ([record("a", 0), record("b", 1), record("c", 2)], 0, []),
        ([record("a", 0), record("c", 1), record("b", 2)], 0, ["b"]),
        ([record("a", 5, partition=1), record("b", 0), record("c", 1)], 1, []),
        ([record("a", 0), record("b", 0, partition=1), record("c", 1)], 2, []),
        ([record("a", 5, partition=1), record("b", 0), record("c", 1)], 0, ["b", "c"]),
        ([record("a", 0), record("b", 0, partition=1), record("c", 1)], 1, ["c"]),
    ],
    ids=["in order", "overtaken", "moved", "moved and back", "moved without growth", "back without growth"],
)
def test_the_order_of_a_key(records: list[ConsumedRecord], growths: int, wrong: list[str]) -> None:
    assert out_of_order(EVENTS, records, growths) == wrong


def test_a_projection_applies_a_moved_key_in_the_order_of_its_events() -> None:
    records = [record("c", 0, partition=0), record("a", 0, partition=2), record("b", 1, partition=2)]
    assert expected_histories(EVENTS, records) == {"k": ["a", "b", "c"]}


def test_replays_and_redrives_are_accounted_for() -> None:
    events = [*EVENTS, written("r", 1, key="r", valid=False), written("bad", 1, key="x", valid=False)]
    first = [record("a", 0), record("b", 1), record("c", 2), record("r", 3, key="r")]
    letters = [record("r", 0, key="r"), record("bad", 1, key="x")]
    published = Published(first, [("one", record("a", 4)), ("two", record("a", 5))])
    verdict = check_pipeline(events, published, letters, in_table=set(), redriven={"r"})
    assert verdict.ok, verdict
    assert (verdict.committed, verdict.published, verdict.dead_lettered) == (5, 4, 1)


@pytest.mark.parametrize(
    ("published", "letters", "redriven", "field"),
    [
        (Published([record("a", 0), record("b", 1)]), [], set(), "missing"),
        (Published([record("a", 0), record("b", 1), record("c", 2), record("c", 3)]), [], set(), "duplicated"),
        (
            Published([record("a", 0), record("b", 1), record("c", 2)], [("one", record("a", 3))] * 2),
            [],
            set(),
            "duplicated",
        ),
        (Published([record("a", 0), record("b", 1), record("c", 2), record("z", 3)]), [], set(), "phantom"),
        (Published([record("a", 0), record("b", 1), record("c", 2)]), [], {"c"}, "misplaced"),
        (Published([record("a", 0), record("c", 1), record("b", 2)]), [], set(), "out_of_order"),
    ],
    ids=["missing", "doubled", "replayed twice", "phantom", "redriven without a dead letter", "overtaken"],
)
def test_each_kind_of_error_is_found(
    published: Published, letters: list[ConsumedRecord], redriven: set[str], field: str
) -> None:
    verdict = check_pipeline(EVENTS, published, letters, in_table=set(), redriven=redriven)
    assert getattr(verdict, field), verdict
    assert not verdict.ok
