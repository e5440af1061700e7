"""`Stack`: Postgres and Kafka together, started at the same time.

Either both are up when the context is entered, or neither is left behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from tailrace.stack.cache import Progress, quiet
from tailrace.stack.kafka import KafkaBroker
from tailrace.stack.postgres import PostgresServer
from tailrace.stack.source import Source


class Stack:
    """A Postgres and a Kafka for one run."""

    def __init__(
        self,
        version: str = "16",
        *,
        settings: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        advertised_port: int | None = None,
        source: Source = Source.AUTO,
        progress: Progress = quiet,
    ) -> None:
        self.postgres = PostgresServer(version, settings=settings, source=source, progress=progress)
        self.kafka = KafkaBroker(
            properties=properties, advertised_port=advertised_port, source=source, progress=progress
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Start both, each in its own thread; if one fails the other is ended too."""
        try:
            with ThreadPoolExecutor(2) as pool:
                starting = [pool.submit(self.kafka.start), pool.submit(self.postgres.start)]
                for one in starting:
                    one.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End both and remove all they wrote."""
        try:
            self.postgres.close()
        finally:
            self.kafka.close()
