"""Reports that a pipeline process sends to its worker: its state, its position and its metrics.

Reports are plain data, because they pass through a pipe between two processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tailrace.config.secrets import mask
from tailrace.errors import TailraceError

STARTING, RUNNING, WAITING, RETRYING = "STARTING", "RUNNING", "WAITING", "RETRYING"
FAILED, STOPPED, PAUSED, RESTARTING = "FAILED", "STOPPED", "PAUSED", "RESTARTING"


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """An error as it is shown to people and programs. `may_recover`: a restart may help."""

    code: str
    what: str
    why: str = ""
    remedy: str = ""
    may_recover: bool = False

    @classmethod
    def of(cls, error: TailraceError, *, may_recover: bool = False) -> ErrorReport:
        return cls(error.code, mask(error.what), mask(error.why), mask(error.remedy), may_recover)

    def text(self) -> str:
        """Returns the error in the form in which the command line prints it."""
        lines = [f"{self.code}: {self.what}"]
        lines += [f"  why:    {self.why}"] if self.why else []
        lines += [f"  remedy: {self.remedy}"] if self.remedy else []
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """The state of a pipeline process at one moment.

    `state` is STARTING, RUNNING, WAITING (another instance runs the pipeline), RETRYING, FAILED or STOPPED. `position`
    is the stored position as people read it, `stored` as it is kept on the offsets topic. `metrics` is a snapshot of
    `worker.metrics.PipelineMetrics`, `facts` what the probe last read from the servers.
    """

    state: str
    at_ms: int
    pid: int
    error: ErrorReport | None = None
    position: str = ""
    stored: dict[str, Any] | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
