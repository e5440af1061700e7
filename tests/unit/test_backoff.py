"""backoff.py: from one second to a minute, never in step and never in a tight loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import backoff
from tailrace.backoff import Backoff

chances = st.floats(0, 1, exclude_max=True)
backoffs = st.builds(
    lambda base, more, multiplier, jitter: Backoff(base, base + more, multiplier, jitter),
    st.floats(0.01, 3600),
    st.floats(0, 3600),
    st.floats(1, 100),
    st.floats(0, 0.9),
)


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60), (8, 60), (10_000, 60)]
)
def test_it_doubles_up_to_a_minute(attempt: int, seconds: float) -> None:
    assert backoff.delay(attempt, chance=lambda: 0.5) == seconds


@given(st.integers(1, 10**9), chances)
def test_the_bounds(attempt: int, chance: float) -> None:
    assert 0.75 <= backoff.delay(attempt, chance=lambda: chance) <= 75


@given(st.integers(1, 20), chances)
def test_the_jitter_is_a_quarter(attempt: int, chance: float) -> None:
    plain = backoff.delay(attempt, chance=lambda: 0.5)
    assert 0.75 * plain <= backoff.delay(attempt, chance=lambda: chance) <= 1.25 * plain


def test_two_pipelines_do_not_return_in_step() -> None:
    assert len({backoff.delay(3) for _ in range(50)}) > 1


@given(backoffs, st.integers(1, 40))
def test_the_delay_is_the_formula_of_its_settings(policy: Backoff, attempt: int) -> None:
    expected = min(policy.base * policy.multiplier ** (attempt - 1), policy.maximum)
    assert policy.delay(attempt, chance=lambda: 0.5) == pytest.approx(expected)


@given(backoffs, st.integers(1, 10**9), chances)
def test_no_delay_is_outside_the_settings(policy: Backoff, attempt: int, chance: float) -> None:
    low, high = (1 - policy.jitter), (1 + policy.jitter)
    found = policy.delay(attempt, chance=lambda: chance)
    assert policy.base * low * 0.999 <= found <= policy.maximum * high * 1.001


@given(backoffs, st.integers(1, 10**6), chances)
def test_no_delay_is_shorter_than_the_one_before(policy: Backoff, attempt: int, chance: float) -> None:
    before, after = (policy.delay(each, chance=lambda: chance) for each in (attempt, attempt + 1))
    assert before <= after
