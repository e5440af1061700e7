"""The projection's part in the play: how far it is, and how it is judged."""

from __future__ import annotations

from tailrace.testkit.demo.display import ProjectionStatus
from tailrace.testkit.demo.process import DemoProcess
from tailrace.testkit.demo.projection_check import compare, expected_histories
from tailrace.testkit.demo.projection_process import OrderSummaryProjection
from tailrace.testkit.demo.report import ProjectionResult
from tailrace.testkit.demo.service_run import ServiceRun


class ProjectionRun(DemoProcess):
    """A projection at work on the topic of another part."""

    def __init__(self, summary: OrderSummaryProjection, source: ServiceRun) -> None:
        super().__init__(f"{summary.NAME} projection", summary.process, f"applying {source.service.topic}")
        self._summary = summary
        self._source = source

    def is_at_work(self) -> bool:
        return self.is_running() and self._summary.applied() > 0

    def has_caught_up(self) -> bool:
        return self.is_running() and self._summary.applied() >= self._source.arrived

    def judge(self) -> ProjectionResult:
        """Compares its rows with the fold of all that its source was judged by."""
        comparison = compare(expected_histories(self._source.published), self._summary.histories())
        return ProjectionResult(self._summary.NAME, comparison, self.outages)

    def standing(self) -> ProjectionStatus:
        return ProjectionStatus(self._summary.NAME, self.state, self._summary.applied())
