"""What the probe derives from what it has read: metrics, facts and alerts. No server is asked."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.kafka.client import KafkaOptions
from tailrace.manager.probe import STALE_PERIODS, PipelineProbe
from tailrace.sources.observation import SourceObservation
from tailrace.worker.metric_table import BY_NAME
from tailrace.worker.metrics import PipelineMetrics

MB = 1 << 20
SEEN = SourceObservation(
    now_ms=0, lag_bytes=100, lag_seconds=0.0, table_bytes=8192, retained_bytes=MB, log_end=10 * MB, status="reserved"
)
UP: dict[str, dict[str, str] | None] = {"source": None, "kafka": None}


class Probed:
    """A probe without servers; `see` gives it an observation."""

    def __init__(self) -> None:
        self.metrics = PipelineMetrics()
        self.alerts: list[tuple[str, str]] = []
        wiring: Any = SimpleNamespace(
            kafka=KafkaOptions("nowhere:1", "orders", dead_letter_topic="letters"),
            database=None,
            settings=SimpleNamespace(schemas=None, pipeline="orders"),
            record_retries=SimpleNamespace(pending={}),
        )
        self.probe = PipelineProbe(wiring, self.metrics, self.notify)

    def notify(self, kind: str, what: str, *, why: str = "", remedy: str = "") -> None:
        assert why
        assert remedy
        self.alerts.append((kind, what))

    def see(self, now: float, seen: SourceObservation | None = SEEN, servers: Any = None) -> dict[str, Any]:
        self.probe._seen = (now, seen) if seen is not None else None
        self.probe._publish(now, servers or UP)
        found: dict[str, Any] = self.metrics.snapshot()["values"]
        return found


@pytest.fixture
def probed() -> Probed:
    return Probed()


def test_facts_are_plain_data_and_values_have_names_of_the_table(probed: Probed) -> None:
    values = probed.see(0)
    assert values.keys() <= BY_NAME.keys()
    facts = json.loads(json.dumps(probed.probe.facts, allow_nan=False))
    assert facts["lag"] == {"bytes": 100, "seconds": 0.0, "events": 0}
    assert facts["log"]["lost_in_seconds"] is None  # there is no limit
    assert values["log_lost_in_seconds"] == float("inf")


def test_values_of_a_server_that_does_not_answer_are_left_out(probed: Probed) -> None:
    probed.see(0)
    values = probed.see(10, None, {"source": {"what": "away"}, "kafka": None})
    assert values["server_up"] == {"source": 0.0, "kafka": 1.0}
    assert "outbox_lag_bytes" not in values
    assert "lag" not in probed.probe.facts


def test_a_slow_leak_of_dead_letters(probed: Probed) -> None:
    for minute in range(60):
        if minute % 5 == 0:
            probed.metrics.dead_lettered("poison_message", 1)
        probed.see(60.0 * minute)
    assert [kind for kind, _ in probed.alerts] == ["dead_letter_leak"]
    assert probed.probe.facts["recent"]["dead_letters"] == 1


def test_a_log_in_danger_by_forecast_and_once(probed: Probed) -> None:
    for step in range(10):
        seen = SourceObservation(
            now_ms=0, lag_bytes=0, log_end=step * MB, safe_bytes=(100 - step) * MB, limit_bytes=100 * MB
        )
        values = probed.see(10.0 * step, seen)
    assert values["log_lost_in_seconds"] == pytest.approx(910, rel=0.01)
    assert [kind for kind, _ in probed.alerts] == ["log_in_danger"]


def test_a_lost_log_says_why(probed: Probed) -> None:
    probed.see(0, SourceObservation(now_ms=0, lost="there is no slot tailrace_orders"))
    assert probed.alerts == [("log_in_danger", "there is no slot tailrace_orders")]
    assert probed.probe.facts["log"]["lost_in_seconds"] == 0


def test_an_old_observation_says_nothing(probed: Probed, monkeypatch: pytest.MonkeyPatch) -> None:
    probed.see(100.0)
    monkeypatch.setattr("tailrace.manager.probe.time.monotonic", lambda: 105.0)
    assert probed.probe.observed is SEEN
    monkeypatch.setattr("tailrace.manager.probe.time.monotonic", lambda: 101.0 + STALE_PERIODS * 10)
    assert probed.probe.observed is None
