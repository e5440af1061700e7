"""The projection's part in the play: how far it is, and how it is judged."""

from __future__ import annotations

from tailrace.testkit.demo.display import ProjectionStanding
from tailrace.testkit.demo.process import Performer
from tailrace.testkit.demo.projection_check import compare, fold
from tailrace.testkit.demo.projection_process import Summary
from tailrace.testkit.demo.report import ProjectionResult
from tailrace.testkit.demo.service_run import Part


class Applying(Performer):
    """A projection at work on the topic of another part."""

    def __init__(self, summary: Summary, source: Part) -> None:
        super().__init__(f"{summary.NAME} projection", summary.process, f"applying {source.service.topic}")
        self._summary = summary
        self._source = source

    def is_at_work(self) -> bool:
        return self.is_running() and self._summary.applied() > 0

    def has_caught_up(self) -> bool:
        return self.is_running() and self._summary.applied() >= self._source.arrived

    def judge(self) -> ProjectionResult:
        """Compares its rows with the fold of all that its source was judged by."""
        comparison = compare(fold(self._source.published), self._summary.histories())
        return ProjectionResult(self._summary.NAME, comparison, self.outages)

    def standing(self) -> ProjectionStanding:
        return ProjectionStanding(self._summary.NAME, self.state, self._summary.applied())
