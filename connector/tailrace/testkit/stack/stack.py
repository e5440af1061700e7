"""`Stack`: Postgres and Kafka together, and MongoDB where it is wished for, started at the same time.

Either all are up when the context is entered, or none is left behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Self

from tailrace.testkit.stack.cache import Progress, quiet
from tailrace.testkit.stack.kafka import KafkaBroker
from tailrace.testkit.stack.mongo import MongoServer
from tailrace.testkit.stack.postgres import PostgresServer
from tailrace.testkit.stack.server import StackServer
from tailrace.testkit.stack.server_choice import ServerChoice


class Stack:
    """A Postgres and a Kafka for one run, and a MongoDB."""

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

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def servers(self) -> list[StackServer]:
        """All of them."""
        return [self.postgres, self.kafka, *([self.mongo] if self.mongo else [])]

    def start(self) -> None:
        """Start all, each in its own thread; if one fails the others are ended too."""
        try:
            with ThreadPoolExecutor(len(self.servers)) as pool:
                for started in [pool.submit(server.start) for server in self.servers]:
                    started.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all and remove what they wrote, even if one of them resists."""
        with ExitStack() as ending:
            for server in self.servers:
                ending.callback(server.close)
