"""judging.py: which rows are published by a recovery, which are left out, and which nobody can decide."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from tailrace.recovery.rules import LONG_MS, SKEW_MS, Fate, Ground, precedes

LOST = 1_000 * LONG_MS
"""The source's clock where the log was lost."""
LONG_AGO, SHORTLY, AFTER = LOST - LONG_MS - 1, LOST - 1, LOST + SKEW_MS + 1
EVERYTHING = 0
NOW, ALL = Ground(until_ms=LOST, at_end=True), Ground(until_ms=LOST, at_end=True, from_beginning=True)
LEDGER = Ground(passed=100, until_ms=LOST, at_end=True)


@pytest.mark.parametrize(
    ("ground", "created", "kept_since", "fate"),
    [
        # The topic keeps everything: what is not there was never published.
        (ALL, LONG_AGO, EVERYTHING, Fate.MISSED),
        (ALL, SHORTLY, EVERYTHING, Fate.MISSED),
        (ALL, None, EVERYTHING, Fate.MISSED),
        # It has deleted some: older rows were published, those since are missed, what was written afterwards too.
        (ALL, LONG_AGO, SHORTLY, Fate.EARLIER),
        (ALL, SHORTLY, SHORTLY, Fate.MISSED),
        (ALL, SHORTLY, inf, Fate.UNTOLD),
        (ALL, None, inf, Fate.UNTOLD),
        (ALL, AFTER, inf, Fate.MISSED),
        # `start: now`: an old row that is not there may be from before the pipeline's first start.
        (NOW, LONG_AGO, EVERYTHING, Fate.EARLIER),
        (NOW, SHORTLY, EVERYTHING, Fate.MISSED),
        (NOW, None, EVERYTHING, Fate.UNTOLD),
        # But not if the ledger's snapshot would show it.
        (LEDGER, None, EVERYTHING, Fate.MISSED),
        (LEDGER, SHORTLY, inf, Fate.UNTOLD),
        # And with it time does not decide: such a row took long to be committed, or was changed since.
        (LEDGER, LONG_AGO, EVERYTHING, Fate.UNTOLD),
        (LEDGER, LONG_AGO, inf, Fate.UNTOLD),
        (replace(LEDGER, from_beginning=True), LONG_AGO, EVERYTHING, Fate.MISSED),
        # Where the log was lost is not known.
        (Ground(), SHORTLY, EVERYTHING, Fate.UNTOLD),
        (Ground(from_beginning=True), SHORTLY, EVERYTHING, Fate.MISSED),
        (Ground(from_beginning=True), SHORTLY, SHORTLY + 1, Fate.UNTOLD),
        # Known, but perhaps not all: what was written later may have been published.
        (Ground(until_ms=LOST), AFTER, inf, Fate.UNTOLD),
        (Ground(until_ms=LOST), AFTER, EVERYTHING, Fate.MISSED),
        # A person's word replaces what is known of the time.
        (Ground(since_ms=LOST), SHORTLY, EVERYTHING, Fate.OLDER),
        (Ground(since_ms=LOST), LOST, EVERYTHING, Fate.MISSED),
        (Ground(since_ms=LONG_AGO, until_ms=LOST), LONG_AGO, EVERYTHING, Fate.MISSED),
        (Ground(since_ms=LOST), LOST, inf, Fate.MISSED),
        (Ground(since_ms=LOST), None, EVERYTHING, Fate.UNTOLD),
    ],
)
def test_a_row_that_is_not_on_kafka(ground: Ground, created: int | None, kept_since: float, fate: Fate) -> None:
    assert ground.judge(created, kept_since) is fate


def test_a_time_without_a_zone_decides_nothing_but_what_a_person_says() -> None:
    assert replace(NOW, zoned=False).time_of(5) is None
    assert replace(NOW, zoned=False, since_ms=1).time_of(5) == 5
    assert NOW.time_of(5) == 5


def test_what_the_ledger_has_seen_is_passed() -> None:
    assert LEDGER.has_passed(99)
    assert not LEDGER.has_passed(100)
    assert not NOW.has_passed(99)
    assert not Ground(passed=100, since_ms=1).has_passed(99), "a person says otherwise"


def test_numbers_of_transactions_wrap_around() -> None:
    assert precedes(2**32 - 5, 10)
    assert not precedes(10, 2**32 - 5)
    assert precedes(2, 2**31 + 7), "frozen: older than any other"
