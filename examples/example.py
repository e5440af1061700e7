"""Base class of the examples: a service of the demo, the worker of a projection, and the comparison of the two."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Generic, NamedTuple, TypeVar

from tailrace.testkit.demo.environment import DemoEnvironment
from tailrace.testkit.demo.process import TailraceProcess
from tailrace.testkit.demo.service import Service
from tailrace.testkit.stack.paths import new_run_dir
from tailrace.testkit.workload.writer import WorkloadWriter

ROOT = Path(__file__).parent.parent
Rows = dict[str, str]
"""A description of each entity, by key."""
S = TypeVar("S", bound=Service)


class Finding(NamedTuple):
    """One line of the verdict: what was compared, and what is wrong."""

    compared: str
    wrong: list[str]


class Example(ABC, Generic[S]):
    """An example. `service` is open, and its connector runs."""

    SERVICE: ClassVar[type[Service]]
    FAULT: ClassVar[str]
    """What `disturb` does, shown to the user."""
    TRUTH: ClassVar[str] = "outbox"
    """What the result is compared with, shown to the user."""

    def __init__(self, service: S) -> None:
        self.service = service
        self.package = type(self).__module__.rpartition(".")[0]
        self.worker = self.worker_process()

    def worker_process(self) -> TailraceProcess:
        """Returns the process that consumes: the example's Faust app."""
        kafka = f"kafka://{self.service.bootstrap}"
        return TailraceProcess(
            "worker",
            new_run_dir("example", None),
            ["project", f"{self.package}.app:app"],
            ready_event="reading",
            environment={**self.environment(), "KAFKA": kafka, "PYTHONPATH": str(ROOT)},
        )

    @classmethod
    def join(cls, environment: DemoEnvironment) -> None:
        """Replaces the services of an environment that is not open yet, if the example has its own."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Environment variables with the address of the app's database."""

    @abstractmethod
    def rows(self) -> Rows:
        """Returns the current rows of the projection."""

    @abstractmethod
    def expected(self) -> Rows:
        """Returns the rows that the projection must have in the end, computed from `TRUTH`. All is written."""

    @abstractmethod
    def disturb(self, earlier: WorkloadWriter) -> None:
        """Causes a fault that a projection must survive, while events arrive. The writer `earlier` has stopped."""

    def audit(self, writers: Sequence[WorkloadWriter]) -> list[Finding]:
        """Compares more than the projection in the end. The writers have stopped, the connector runs."""
        return []
