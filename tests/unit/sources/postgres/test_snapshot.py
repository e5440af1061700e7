"""Tests of snapshot.py without a server: which rows a snapshot contains, by 32 bits of a 64-bit transaction id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.sources.postgres.snapshot import Snapshot
from tailrace.sources.postgres.table_sql import rows_after

EPOCH = 2**32


def test_a_snapshot_is_parsed() -> None:
    assert Snapshot.parse("10:20:10,14,15") == Snapshot(10, 20, frozenset({10, 14, 15}))
    assert Snapshot.parse("10:10:") == Snapshot(10, 10, frozenset())


@pytest.mark.parametrize(
    ("xid", "visible"),
    [(1, True), (2, True), (9, True), (10, False), (11, True), (14, False), (19, True), (20, False), (25, False)],
)
def test_visibility_within_one_epoch(xid: int, visible: bool) -> None:
    assert Snapshot.parse("10:20:10,14").contains(xid, before=30) is visible


def test_a_frozen_row_of_half_the_id_space_ago_is_old() -> None:
    """Its id looks like a future one: the nearest id with these bits would be wrong."""
    snapshot = Snapshot.parse(f"{3 * EPOCH + 100}:{3 * EPOCH + 100}:")
    writer = 2 * EPOCH + 2**30
    assert snapshot.contains(writer % EPOCH, before=3 * EPOCH + 200)


def test_ids_that_wrap_around_after_the_snapshot() -> None:
    snapshot = Snapshot(EPOCH - 5, EPOCH - 2, frozenset({EPOCH - 4}))
    seen = {number: snapshot.contains(number % EPOCH, before=EPOCH + 10) for number in range(EPOCH - 8, EPOCH + 10)}
    assert [number - EPOCH for number, visible in seen.items() if visible] == [-8, -7, -6, -5, -3, 0, 1, 2]
    # 0, 1 and 2 are never given to a transaction: those ids mark frozen rows.


@given(
    xmin=st.integers(3, 5 * EPOCH),
    span=st.integers(0, 200),
    since=st.integers(0, 5000),
    age=st.integers(1, EPOCH // 2),
    data=st.data(),
)
def test_every_row_is_visible_according_to_its_64_bit_id(
    xmin: int, span: int, since: int, age: int, data: st.DataObject
) -> None:
    """Writers from long ago (as far as ids are not reused), around the snapshot, and after it."""
    xmax = xmin + span
    before = xmax + since
    running = frozenset(data.draw(st.sets(st.integers(xmin, xmax - 1)))) if span else frozenset()
    snapshot = Snapshot(xmin, xmax, running)
    candidates = [before - EPOCH, xmin - age, xmin - 1, *running, xmin, xmax - 1, xmax, before - 1]
    candidates.append(data.draw(st.integers(xmin, max(xmin, before - 1))))
    for writer in candidates:
        if not 3 <= writer < before or writer % EPOCH < 3:
            continue
        truth = writer < xmax and writer not in running
        assert snapshot.contains(writer % EPOCH, before=before) is truth, writer


TYPES = {"at": "timestamp", "id": "text"}


@pytest.mark.parametrize(
    ("after", "condition"),
    [
        (
            ["x", "y"],
            '(("at" >  E\'x\'::timestamp OR "at" IS NULL)'
            ' OR "at" =  E\'x\'::timestamp AND ("id" >  E\'y\'::text OR "id" IS NULL))',
        ),
        ([None, "y"], '("at" IS NULL AND ("id" >  E\'y\'::text OR "id" IS NULL))'),
        ([None, None], "(false)"),
        (["o'clock\\", None], "((\"at\" >  E'o''clock\\\\'::timestamp OR \"at\" IS NULL))"),
    ],
)
def test_the_condition_for_the_next_rows(after: list[str | None], condition: str) -> None:
    assert rows_after({"at": '"at"', "id": '"id"'}, after, TYPES) == condition
