"""Tests of record_retries.py: which refused records are sent again and when, by the settings of their rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.backoff import Backoff
from tailrace.errors import Reason, RecordDelayed
from tailrace.event import Column, Row, redriven_position
from tailrace.pipeline.record_retries import MAX_PENDING, RecordRetries, RetryPolicy, RowColumns

COLUMNS = RowColumns("max_attempts", "base_delay_ms", "max_delay_ms", "backoff_multiplier")
NAMES = ("max_attempts", "base_delay_ms", "max_delay_ms", "backoff_multiplier")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def row(position: str = "0/1:1", *values: object) -> Row:
    texts = tuple(None if value is None else str(value).encode() for value in values)
    return Row(tuple(Column(name, 25) for name in NAMES[: len(values)]), texts, position, 5)


def retries(clock: Clock, policy: RetryPolicy | None = None) -> RecordRetries:
    return RecordRetries(policy or RetryPolicy(3, Backoff(jitter=0)), COLUMNS, clock=clock)


def test_a_record_is_sent_again_after_each_delay_and_then_dead_lettered() -> None:
    clock, waits = Clock(), []
    of = retries(clock)
    for _ in range(2):
        assert of.note({"0/1:1": "too large"}) == {}
        with pytest.raises(RecordDelayed) as delayed:
            of.decide([row()])
        waits.append(delayed.value.seconds)
        clock.now += delayed.value.seconds
        assert of.decide([row()]) == {}
    of.note({"0/1:1": "too large"})
    (rejected,) = of.decide([row(), row("0/1:2")]).values()
    assert waits == [1, 2]
    assert rejected.reason is Reason.MAX_RETRIES_EXCEEDED
    assert rejected.explanation == "refused 3 times: too large"
    assert of.has_given_up(["0/1:1"])
    assert not of.has_given_up(["0/1:1", "0/1:2"])


def test_without_retries_the_first_refusal_is_permanent() -> None:
    of = retries(Clock(), RetryPolicy())
    of.note({"0/1:1": "too large"})
    (rejected,) = of.decide([row()]).values()
    assert (rejected.reason, rejected.explanation) == (Reason.PERMANENT_FAILURE, "too large")


def test_the_settings_of_a_row_replace_those_of_the_pipeline() -> None:
    clock = Clock()
    of = retries(clock, RetryPolicy(1, Backoff(jitter=0)))
    for expected in (0.5, 1.5, 2.0):
        of.note({"0/1:1": "too large"})
        with pytest.raises(RecordDelayed) as delayed:
            of.decide([row("0/1:1", 4, 500, 2000, "3.00")])
        assert delayed.value.seconds == expected
        clock.now += expected
    of.note({"0/1:1": "too large"})
    assert of.decide([row("0/1:1", 4, 500, 2000, "3.00")])["0/1:1"].explanation == "refused 4 times: too large"


def test_a_delay_counts_from_the_first_time_the_row_is_read() -> None:
    clock = Clock()
    of = retries(clock)
    of.note({"0/1:1": "too large"})
    for left in (1, 0.75):
        with pytest.raises(RecordDelayed) as delayed:
            of.decide([row()])
        assert delayed.value.seconds == left
        clock.now += 0.25


def test_the_longest_delay_of_several_records_counts() -> None:
    of = retries(Clock())
    of.note({"0/1:1": "too large", "0/1:2": "too large"})
    with pytest.raises(RecordDelayed, match="2 refused records") as delayed:
        of.decide([row("0/1:1", 5, 1000), row("0/1:2", 5, 9000)])
    assert delayed.value.seconds == 9


@given(st.lists(st.one_of(st.none(), st.floats(), st.integers(), st.text(max_size=5)), min_size=4, max_size=4))
def test_no_value_of_a_row_makes_a_delay_unusable(values: list[object]) -> None:
    policy = RetryPolicy(3).of_row(Row(tuple(Column(n, 25) for n in NAMES), _texts(values), "0/1:1", 5), COLUMNS)
    assert 1 <= policy.attempts <= 1000
    for attempt in (1, 2, 1000):
        assert 0 < policy.backoff.delay(attempt) <= 3600 * 1.25


def _texts(values: list[object]) -> tuple[bytes | None, ...]:
    return tuple(None if value is None else str(value).encode() for value in values)


def test_the_record_of_a_redrive_is_not_retried() -> None:
    of = retries(Clock())
    reasons = {"0/1:1": "too large", redriven_position("0/1:1"): "too large"}
    assert of.note(reasons) == reasons
    assert not of.pending


def test_an_event_behind_a_parked_key_is_not_retried() -> None:
    of = retries(Clock())
    of.note({"0/1:1": "too large"})
    rejected = of.of_waiting("0/1:1")
    assert rejected is not None
    assert rejected.reason is Reason.PERMANENT_FAILURE
    assert of.of_waiting("0/1:2") is None


def test_the_number_of_remembered_refusals_is_bounded() -> None:
    of = retries(Clock())
    of.note({f"0/1:{n}": "too large" for n in range(MAX_PENDING + 5)})
    assert len(of.pending) == MAX_PENDING
    assert "0/1:0" not in of.pending
