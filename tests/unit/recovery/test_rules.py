"""Which rows a recovery publishes, which it leaves out, and which are undecided."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from tailrace.recovery.rules import LONG_MS, SKEW_MS, DecisionRules, RowDecision, precedes

LOST = 1_000 * LONG_MS
"""The source's clock where the log was lost."""
LONG_AGO, SHORTLY, AFTER = LOST - LONG_MS - 1, LOST - 1, LOST + SKEW_MS + 1
EVERYTHING = 0
NOW, ALL = DecisionRules(until_ms=LOST, at_end=True), DecisionRules(until_ms=LOST, at_end=True, from_beginning=True)
HISTORY = DecisionRules(passed=100, until_ms=LOST, at_end=True)


@pytest.mark.parametrize(
    ("rules", "created", "kept_since", "decision"),
    [
        # The topic keeps everything, so what is not there was never published.
        (ALL, LONG_AGO, EVERYTHING, RowDecision.MISSED),
        (ALL, SHORTLY, EVERYTHING, RowDecision.MISSED),
        (ALL, None, EVERYTHING, RowDecision.MISSED),
        # It has deleted some: older rows were published, later ones are missed.
        (ALL, LONG_AGO, SHORTLY, RowDecision.EARLIER),
        (ALL, SHORTLY, SHORTLY, RowDecision.MISSED),
        (ALL, SHORTLY, inf, RowDecision.UNDECIDED),
        (ALL, None, inf, RowDecision.UNDECIDED),
        (ALL, AFTER, inf, RowDecision.MISSED),
        # `start: now`: an old row that is not there may be from before the pipeline's first start.
        (NOW, LONG_AGO, EVERYTHING, RowDecision.EARLIER),
        (NOW, SHORTLY, EVERYTHING, RowDecision.MISSED),
        (NOW, None, EVERYTHING, RowDecision.UNDECIDED),
        # But not if the snapshot of the position history would show it.
        (HISTORY, None, EVERYTHING, RowDecision.MISSED),
        (HISTORY, SHORTLY, inf, RowDecision.UNDECIDED),
        # With a snapshot time does not decide: such a row took long to commit, or was changed since.
        (HISTORY, LONG_AGO, EVERYTHING, RowDecision.UNDECIDED),
        (HISTORY, LONG_AGO, inf, RowDecision.UNDECIDED),
        (replace(HISTORY, from_beginning=True), LONG_AGO, EVERYTHING, RowDecision.MISSED),
        # The position of the loss is not known.
        (DecisionRules(), SHORTLY, EVERYTHING, RowDecision.UNDECIDED),
        (DecisionRules(from_beginning=True), SHORTLY, EVERYTHING, RowDecision.MISSED),
        (DecisionRules(from_beginning=True), SHORTLY, SHORTLY + 1, RowDecision.UNDECIDED),
        # Known, but maybe not the last one: what was written later may have been published.
        (DecisionRules(until_ms=LOST), AFTER, inf, RowDecision.UNDECIDED),
        (DecisionRules(until_ms=LOST), AFTER, EVERYTHING, RowDecision.MISSED),
        # --since replaces what is known of the time.
        (DecisionRules(since_ms=LOST), SHORTLY, EVERYTHING, RowDecision.OLDER),
        (DecisionRules(since_ms=LOST), LOST, EVERYTHING, RowDecision.MISSED),
        (DecisionRules(since_ms=LONG_AGO, until_ms=LOST), LONG_AGO, EVERYTHING, RowDecision.MISSED),
        (DecisionRules(since_ms=LOST), LOST, inf, RowDecision.MISSED),
        (DecisionRules(since_ms=LOST), None, EVERYTHING, RowDecision.UNDECIDED),
    ],
)
def test_a_row_that_is_not_on_kafka(
    rules: DecisionRules, created: int | None, kept_since: float, decision: RowDecision
) -> None:
    assert rules.decide(created, kept_since) is decision


def test_a_time_without_a_zone_decides_nothing_but_what_a_person_says() -> None:
    assert replace(NOW, has_time_zone=False).time_of(5) is None
    assert replace(NOW, has_time_zone=False, since_ms=1).time_of(5) == 5
    assert NOW.time_of(5) == 5


def test_rows_in_a_snapshot_of_the_history_are_passed() -> None:
    assert HISTORY.has_passed(99)
    assert not HISTORY.has_passed(100)
    assert not NOW.has_passed(99)
    assert not DecisionRules(passed=100, since_ms=1).has_passed(99), "a person says otherwise"


def test_numbers_of_transactions_wrap_around() -> None:
    assert precedes(2**32 - 5, 10)
    assert not precedes(10, 2**32 - 5)
    assert precedes(2, 2**31 + 7), "frozen: older than any other"
