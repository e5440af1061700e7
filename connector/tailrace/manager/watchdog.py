"""Ends the process of a pipeline that is stalled (I10): FAILED with PipelineStalled, announced in Kafka, exit code 3.

Blocked threads cannot be stopped from outside, so the process ends. That is safe at any moment.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tailrace.config.model import PipelineSettings
from tailrace.errors import PipelineStalled
from tailrace.manager.probe import PROBE_SECONDS, PipelineProbe
from tailrace.manager.stall import Sighting, StallDetector
from tailrace.worker.metrics import PipelineMetrics
from tailrace.worker.supervisor import Supervisor
from tailrace.worker.wiring import Wiring

REPORT_SECONDS = 8.0
"""How long the announcement and the last alerts may take."""
PROBES_PER_BOUND = 4
SEND_SECONDS = 0.5
"""Time for the last report to the worker, which another thread sends."""


def stall_bound(settings: PipelineSettings) -> float:
    """Returns the seconds without progress that are allowed: one wait for the database may take `link_timeout`."""
    return max(settings.limits.stall_timeout, 2 * settings.source.link_timeout)


class PipelineWatch:
    """The probe and the watchdog of one pipeline, beside its supervisor."""

    def __init__(self, wiring: Wiring, supervisor: Supervisor) -> None:
        bound = stall_bound(wiring.settings)
        self._probe = PipelineProbe(
            wiring, supervisor.metrics, supervisor.notify, every=min(PROBE_SECONDS, bound / PROBES_PER_BOUND)
        )
        self._watchdog = Watchdog(supervisor.metrics, self._probe, bound, supervisor.stalled)

    @property
    def facts(self) -> dict[str, Any]:
        """What the probe read last."""
        return self._probe.facts

    def start(self) -> None:
        self._probe.start()
        self._watchdog.start()

    def close(self) -> None:
        """Ends both threads soon; does not wait for them."""
        self._watchdog.close()
        self._probe.close()


class Watchdog:
    """A thread that looks for a stall. `report` announces the error; then the process ends."""

    def __init__(
        self,
        metrics: PipelineMetrics,
        probe: PipelineProbe,
        bound: float,
        report: Callable[[PipelineStalled], None],
        *,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._metrics = metrics
        self._probe = probe
        self._report = report
        self._leave = leave
        self._pause = min(1.0, bound / 10)
        self._detector = StallDetector(bound, max_step=2 * self._pause)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(self._pause):
            observed = self._probe.observed
            seen = Sighting(
                replace(self._metrics.alive),
                self._metrics.position,
                observed.behind if observed is not None else None,
                busy=observed is not None and observed.busy,
            )
            error = self._detector.look(time.monotonic(), seen)
            if error is not None:
                self._end(error)
                return

    def _end(self, error: PipelineStalled) -> None:
        # Started first: the report waits for Kafka, which may be the reason for the stall.
        limit = threading.Timer(REPORT_SECONDS, self._leave, (error.exit_code,))
        limit.daemon = True
        limit.start()
        try:
            self._report(error)
            time.sleep(SEND_SECONDS)
        finally:
            limit.cancel()
            self._leave(error.exit_code)
