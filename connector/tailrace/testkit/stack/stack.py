"""`Stack`: Postgres and Kafka, and MongoDB if asked for, started at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailrace.testkit.stack.kafka import KafkaBroker
from tailrace.testkit.stack.mongo import MongoServer
from tailrace.testkit.stack.paths import Progress, quiet
from tailrace.testkit.stack.postgres import PostgresServer
from tailrace.testkit.stack.server import ServerChoice, ServerGroup, StackServer


class Stack(ServerGroup):
    """A Postgres, a Kafka and perhaps a MongoDB for one run."""

    def __init__(
        self,
        version: str = "16",
        *,
        settings: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        advertised_port: int | None = None,
        mongo: bool = False,
        choice: ServerChoice = ServerChoice.AUTO,
        progress: Progress = quiet,
    ) -> None:
        self.postgres = PostgresServer(version, settings=settings, choice=choice, progress=progress)
        self.kafka = KafkaBroker(
            properties=properties, advertised_port=advertised_port, choice=choice, progress=progress
        )
        self.mongo = MongoServer(choice=choice, progress=progress) if mongo else None

    @property
    def servers(self) -> Sequence[StackServer]:
        return [self.postgres, self.kafka, *([self.mongo] if self.mongo else [])]
