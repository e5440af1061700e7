"""The verdict of a soak: what grows is found, what only varies is not."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.flatness import FEWEST, Verdict, judge, judge_all, slope

MINUTES = 60
SECONDS = [10.0 * number for number in range(6 * MINUTES)]


def growing(per_hour: float, *, start: float = 90.0, noise: float = 1.0) -> list[tuple[float, float]]:
    chance = random.Random(1)
    return [(at, start + per_hour * at / 3600 + chance.uniform(-noise, noise)) for at in SECONDS]


def test_the_slope_of_a_line() -> None:
    assert slope([(at, 3 + 2 * at) for at in SECONDS]) == pytest.approx(2)


@pytest.mark.parametrize(
    ("per_hour", "verdict"),
    [
        (0.0, Verdict.FLAT),
        (3.0, Verdict.FLAT),
        (-20.0, Verdict.FLAT),
        (9.5, Verdict.TOO_SHORT),
        (14.0, Verdict.GROWS),
    ],
)
def test_growth_beyond_the_bound_is_not_flat(per_hour: float, verdict: Verdict) -> None:
    """After the warm-up three quarters of an hour are left: 9.5 an hour have not yet exceeded the bound."""
    found = judge(growing(per_hour), bound=8.0)
    assert found.verdict is verdict
    assert found.per_hour == pytest.approx(per_hour, abs=1.0)


def test_any_slope_beyond_the_bound_grows_in_a_long_run() -> None:
    long = [(at * 4, value) for at, value in growing(0.0)]
    assert judge([(at, 90 + 9.5 * at / 3600) for at, _ in long], bound=8.0).verdict is Verdict.GROWS


def test_a_sawtooth_and_single_peaks_are_flat() -> None:
    """Each tooth grows by 3,600 an hour."""
    sawtooth = [(at, at % 300) for at in SECONDS]
    assert judge(sawtooth, bound=100.0).verdict is Verdict.FLAT
    peaks = [(at, 500.0 if number % 40 == 0 else 90.0) for number, at in enumerate(SECONDS)]
    found = judge(peaks, bound=1.0)
    assert (found.verdict, found.highest, found.median) == (Verdict.FLAT, 500.0, 90.0)


def test_the_warm_up_does_not_count() -> None:
    warming = [(at, 90 - 60 * math.exp(-at / 200)) for at in SECONDS]
    assert judge(warming, bound=1.0).verdict is Verdict.FLAT
    assert slope(warming[:60]) * 3600 > 100


def test_too_few_samples_show_nothing() -> None:
    assert judge([(float(at), 1.0) for at in range(FEWEST - 1)], bound=1.0).verdict is Verdict.TOO_SHORT
    assert judge([], bound=1.0).verdict is Verdict.TOO_SHORT


def test_each_value_has_its_own_bound() -> None:
    samples = [{"seconds": at, "memory": 90 + at / 100, "files": 30.0} for at in SECONDS]
    found = judge_all(samples, {"memory": 8.0, "files": 1.0})
    assert {name: each.verdict for name, each in found.items()} == {"memory": Verdict.GROWS, "files": Verdict.FLAT}
