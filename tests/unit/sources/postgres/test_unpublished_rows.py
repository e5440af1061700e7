"""Tests of unpublished_rows.py: transaction ids that wrap around after 2^32, and partitions of partitions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.sources.postgres.unpublished_rows import WRAP, OutboxPartition, last_attached, later

NOW = 5 * WRAP + 100
"""The next transaction id: the last hundred ids are small ones, all others were given out before the wraparound."""
PART = OutboxPartition(2, 1, "part", "r", True, "p", 50, 0, 40, 40, 50, False, NOW)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [(50, 60, 60), (60, 50, 60), (50, WRAP - 1, 50), (200, 99, 99), (2, 200, 200), (0, 0, 0), (99, 0, 99)],
)
def test_the_later_of_two_transaction_ids(one: int, other: int, expected: int) -> None:
    assert later(one, other, NOW) == expected


@pytest.mark.parametrize(
    ("transaction", "since", "expected"),
    [
        (50, NOW - 50, True),
        (49, NOW - 50, False),
        (WRAP - 1, NOW - 101, True),
        (WRAP - 1, NOW - 100, False),
        (99, NOW, False),
        (2, NOW - 100, False),
    ],
)
def test_whether_a_transaction_began_since_another(transaction: int, since: int, expected: bool) -> None:
    assert PART.is_since(transaction, since) is expected


def test_a_partition_belongs_to_the_outbox_since_the_last_attach_above_it() -> None:
    root = replace(PART, oid=1, parent=0, kind="p", attached=0)
    middle = replace(PART, kind="p", attached=70)
    leaf = replace(PART, oid=3, parent=2, attached=WRAP - 5)
    newer = replace(PART, oid=4, parent=2, attached=80)
    assert last_attached([root, middle, leaf, newer]) == {1: 0, 2: 70, 3: 70, 4: 80}
