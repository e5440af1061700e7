"""A service of the demo: a database with an outbox, a pipeline file as a user would write it, and the connector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tailrace.positions.base import Position
from tailrace.testkit.demo.connector import Connector
from tailrace.testkit.demo.servers import Servers
from tailrace.testkit.stack.paths import private_file
from tailrace.testkit.workload.writer import Mix, WorkloadWriter

SHOP = "shop"
"""The database, and the first part of the topics' names."""


class Service(ABC):
    """Names first; `prepare` makes what they stand for, `remove` takes it away again."""

    NAME: ClassVar[str]
    DATABASE: ClassVar[str]

    def __init__(self, servers: Servers, suffix: str) -> None:
        """On servers of somebody else's there may be a shop, or another demo, already: `suffix` tells ours from it."""
        self.servers = servers
        self.pipeline = f"{self.NAME}{suffix}"
        self.database = f"{SHOP}{suffix}"
        self.topic = f"{SHOP}.{self.NAME}{suffix}"
        self.letters = f"{self.pipeline}.dead-letters"
        self.offsets = f"tailrace-offsets{suffix}"
        self._connector: Connector | None = None

    @property
    def bootstrap(self) -> str:
        return self.servers.kafka.bootstrap

    @property
    def connector(self) -> Connector:
        if self._connector is None:
            raise RuntimeError("the scene is not open")
        return self._connector

    def prepare(self, folder: Path) -> None:
        """Database, outbox and pipeline file; the connector is not started yet."""
        self._connector = Connector(folder / f"{self.NAME}.yaml")
        self.create()
        private_file(self._connector.file, self.pipeline_text(), None)

    def close(self) -> None:
        """Ends the connector, and removes what the demo made on servers of somebody else's."""
        if self._connector is None:
            return
        self._connector.close()
        if not self.servers.ours:
            self.remove()

    @abstractmethod
    def create(self) -> None:
        """Makes the database and its outbox."""

    @abstractmethod
    def remove(self) -> None:
        """Takes them away."""

    @abstractmethod
    def pipeline_text(self) -> str:
        """The settings file."""

    @abstractmethod
    def writer(self, *, seed: int, keys: int, mix: Mix) -> WorkloadWriter: ...

    @abstractmethod
    def in_outbox(self) -> set[str]:
        """The ids that the outbox holds."""

    def astray(self, last: Position) -> list[str]:
        """What the database was told too early, `last` being the position stored last."""
        return []

    @abstractmethod
    def tell(self, payload: Mapping[str, Any]) -> str:
        """An event in a few words."""

    @property
    @abstractmethod
    def outbox(self) -> str:
        """What the outbox is called."""

    @property
    @abstractmethod
    def client(self) -> str:
        """A command that opens the database."""
