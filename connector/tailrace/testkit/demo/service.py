"""A service of the demo: a database with an outbox, a pipeline file as a user would write it, and a connector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tailrace.positions.base import Position
from tailrace.testkit.demo.process import Connector
from tailrace.testkit.stack import KafkaBroker
from tailrace.testkit.stack.paths import private_file
from tailrace.testkit.workload.writer import Mix, WorkloadWriter

SHOP = "shop"
"""The name of the database, and the prefix of the topics."""


class Service(ABC):
    """The names of a service; `prepare` creates its database and files, `remove` removes them."""

    NAME: ClassVar[str]
    DATABASE: ClassVar[str]

    def __init__(self, kafka: KafkaBroker, suffix: str, *, ours: bool) -> None:
        """Servers that are not `ours` may have a shop or another demo already: `suffix` makes our names unique."""
        self._kafka = kafka
        self._ours = ours
        self.pipeline = f"{self.NAME}{suffix}"
        self.database = f"{SHOP}{suffix}"
        self.topic = f"{SHOP}.{self.NAME}{suffix}"
        self.dead_letters = f"{self.pipeline}.dead-letters"
        self.offsets = f"tailrace-offsets{suffix}"
        self._connector: Connector | None = None

    @property
    def bootstrap(self) -> str:
        return self._kafka.bootstrap

    @property
    def connector(self) -> Connector:
        if self._connector is None:
            raise RuntimeError("the environment is not open")
        return self._connector

    def prepare(self, folder: Path) -> None:
        """Creates database, outbox and pipeline file, without starting the connector."""
        self._connector = Connector(folder / f"{self.NAME}.yaml")
        self.create()
        private_file(self._connector.file, self.pipeline_text(), None)

    def close(self) -> None:
        """Ends the connector; on servers that are not ours, removes what the demo created."""
        if self._connector is None:
            return
        self._connector.close()
        if not self._ours:
            self.remove()

    @abstractmethod
    def create(self) -> None:
        """Creates the database and its outbox."""

    @abstractmethod
    def remove(self) -> None:
        """Removes them."""

    @abstractmethod
    def pipeline_text(self) -> str:
        """Returns the text of the pipeline file."""

    @abstractmethod
    def writer(self, *, seed: int, keys: int, mix: Mix) -> WorkloadWriter: ...

    @abstractmethod
    def in_outbox(self) -> set[str]:
        """Returns the ids in the outbox."""

    def confirmed_too_early(self, last: Position) -> list[str]:
        """Returns what the database was allowed to discard before `last`, the last stored position, covered it."""
        return []

    @abstractmethod
    def describe(self, payload: Mapping[str, Any]) -> str:
        """Describes an event in a few words."""

    @property
    @abstractmethod
    def outbox(self) -> str:
        """The name of the outbox."""

    @property
    @abstractmethod
    def client(self) -> str:
        """A command that opens the database."""
