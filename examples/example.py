"""What an example is made of: a service of the demo, the worker of a projection, and how the two are compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from tailrace.testkit.demo.command import TailraceProcess
from tailrace.testkit.demo.service import Service
from tailrace.testkit.stack.paths import new_run_dir
from tailrace.testkit.workload.writer import WorkloadWriter

ROOT = Path(__file__).parent.parent
Rows = dict[str, str]
"""What there is of each entity, in words."""
S = TypeVar("S", bound=Service)


class Example(ABC, Generic[S]):
    """`service` is open, and its connector runs."""

    SERVICE: ClassVar[type[Service]]
    FAULT: ClassVar[str]
    """What `disturb` does, for those who watch."""

    def __init__(self, service: S) -> None:
        self.service = service
        package = type(self).__module__.rpartition(".")[0]
        self.worker = TailraceProcess(
            "worker",
            new_run_dir("example", None),
            ["project", f"{package}.app:app"],
            working="reading",
            environment={**self.environment(), "KAFKA": f"kafka://{service.bootstrap}", "PYTHONPATH": str(ROOT)},
        )

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Where the app finds its database."""

    @abstractmethod
    def rows(self) -> Rows:
        """What the projection holds now."""

    @abstractmethod
    def expected(self) -> Rows:
        """What it must hold in the end: what the outbox comes to."""

    @abstractmethod
    def disturb(self, earlier: WorkloadWriter) -> None:
        """Does something that a projection must get over, while events arrive. `earlier` wrote, and has ended."""
