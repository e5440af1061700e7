"""The brake, and the samples of the log."""

from __future__ import annotations

import pytest

from tailrace.outbox.writer.pressure import SAMPLES, Brake, BrakeState, Pressure, Samples
from tailrace.outbox.writer.requests import Request, Steps, run


def pressure(pending: int | None = None, seconds: float | None = None, lag: int | None = None) -> Pressure:
    return Pressure(None, lag, seconds, pending, "")


@pytest.mark.parametrize(
    ("measured", "delay"),
    [
        (pressure(), 0.0),
        (pressure(100), 0.0),
        (pressure(150), 0.1),
        (pressure(200), 0.2),
        (pressure(10**9), 0.2),
        (pressure(0, seconds=15), 0.1),
        (pressure(0, lag=10**12), 0.0),
    ],
)
def test_the_delay_grows_with_the_pressure_and_is_bounded(measured: Pressure, delay: float) -> None:
    assert Brake(pending_events=100, lag_seconds=10, max_delay=0.2).delay(measured) == pytest.approx(delay)


def test_the_pressure_is_measured_once_per_interval() -> None:
    measured = []

    def measure() -> Steps[Pressure]:
        measured.append(1)
        return pressure(200)
        yield

    def nothing(request: Request) -> None:
        raise AssertionError(request)

    state = BrakeState(Brake(pending_events=100, max_delay=0.001, interval=60))
    assert [run(state.steps(measure), nothing) for _ in range(3)] == [0.001] * 3
    assert len(measured) == 1


def test_samples_say_when_the_log_was_at_a_position() -> None:
    samples = Samples()
    for at, end in ((0.0, 100), (0.5, 150), (1.0, 200), (2.0, 200), (3.0, 300)):
        samples.add(end, at)
    assert samples.time_of(300) == 3.0
    assert samples.time_of(299) == 2.0
    assert samples.time_of(199) == 0.0
    assert samples.time_of(50) == 0.0  # at least since then
    for at in range(4, 2 * SAMPLES):
        samples.add(1000 + at, float(at))
    assert samples.time_of(1000 + 2 * SAMPLES) == 2 * SAMPLES - 1
