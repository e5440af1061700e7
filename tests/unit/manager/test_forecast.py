"""The forecast of a lost log, and the estimate of pending events."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tailrace.manager.forecast import EVENT_BYTES, LogGrowth, PendingEvents, lost_in
from tailrace.sources.mongo.observation import oplog_figures
from tailrace.sources.observation import SourceObservation

MB = 1 << 20


def test_growth_is_measured_over_the_window() -> None:
    growth = LogGrowth(60)
    assert growth.look(0, 1000) is None
    assert growth.look(10, 2000) == 100
    assert growth.look(60, 2000) == pytest.approx(1000 / 60)
    # What was written before the window no longer counts.
    assert [growth.look(now, 2000) for now in (70, 120, 200)][-1] == 0


def test_growth_begins_again_on_another_log() -> None:
    growth = LogGrowth(60)
    growth.look(0, 5000)
    assert growth.look(10, 100) is None
    assert growth.look(20, 200) == 10


@pytest.mark.parametrize(
    ("safe", "growth", "seconds"),
    [
        (None, 100.0, math.inf),  # the server has no limit
        (1000, 100.0, 10.0),
        (1000, 0.0, math.inf),
        (1000, None, None),
        (0, None, 0.0),
        (-5, 100.0, 0.0),
    ],
)
def test_lost_in(safe: int | None, growth: float | None, seconds: float | None) -> None:
    assert lost_in(safe, growth) == seconds


def test_the_forecast_comes_true() -> None:
    """A log of 100 MB that grows by 1 MB/s is lost after 100 s, whenever one asks."""
    growth = LogGrowth()
    for now in range(0, 100, 10):
        rate = growth.look(now, now * MB)
        if rate is not None:
            assert now + (lost_in((100 - now) * MB, rate) or 0) == pytest.approx(100)


class TestOplog:
    def test_one_that_is_not_full(self) -> None:
        found = oplog_figures(1000, 1100, 50 * MB, 100 * MB, 1050)
        assert (found.growth, found.end, found.limit) == (None, 50 * MB, 100 * MB)
        assert found.retained == 25 * MB
        assert found.safe == 75 * MB

    def test_a_full_one(self) -> None:
        found = oplog_figures(1000, 1100, 100 * MB, 100 * MB, 1075)
        assert found.growth == MB
        assert found.safe == 75 * MB
        # At that rate, the entries before the position are dropped after the time that they cover.
        assert lost_in(found.safe, found.growth) == 75

    def test_a_position_that_is_gone(self) -> None:
        assert oplog_figures(1000, 1100, 100 * MB, 100 * MB, 900).safe == 0

    def test_a_position_at_the_end(self) -> None:
        found = oplog_figures(1000, 1100, 100 * MB, 100 * MB, 1100)
        assert (found.retained, found.safe) == (0, 100 * MB)


class TestPending:
    SEEN = SourceObservation(now_ms=0, lag_bytes=0, inserted=100)

    def behind(self, inserted: int | None, lag: int = 10_000_000) -> SourceObservation:
        return replace(self.SEEN, behind=True, lag_bytes=lag, inserted=inserted)

    def test_inserted_minus_published(self) -> None:
        pending = PendingEvents()
        assert pending.look(self.SEEN, 50) == 0
        assert pending.look(self.behind(170), 50) == 70
        assert pending.look(self.behind(170), 90) == 30
        assert pending.look(self.behind(170), 130) == 0

    def test_the_lag_bounds_the_estimate(self) -> None:
        """Rolled-back rows count as inserted."""
        pending = PendingEvents()
        pending.look(self.SEEN, 0)
        assert pending.look(self.behind(1_000_000, lag=200_000), 0) == 200_000 // EVENT_BYTES

    def test_without_a_baseline_only_the_bound_is_known(self) -> None:
        assert PendingEvents().look(self.behind(500, lag=100_000), 0) == 100_000 // EVENT_BYTES
        pending = PendingEvents()
        pending.look(self.SEEN, 0)
        assert pending.look(self.behind(3, lag=100_000), 0) == 1000  # statistics were reset

    def test_a_log_that_can_be_counted(self) -> None:
        assert PendingEvents().look(replace(self.SEEN, pending=12), 0) == 12

    def test_nothing_is_known(self) -> None:
        assert PendingEvents().look(SourceObservation(now_ms=0), 0) is None
