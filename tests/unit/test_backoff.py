"""retry.py: from one second to a minute, never in step and never in a tight loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import backoff

chances = st.floats(0, 1, exclude_max=True)


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
