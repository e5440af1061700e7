"""Postgres and Kafka of the demo's own, started at the same time, with progress, and interruptible at any moment.

Servers named in TAILRACE_STACK_POSTGRES or TAILRACE_STACK_KAFKA are used instead. Docker is not: pulling images
says nothing for a minute, and the wheels and jars give the same servers everywhere. The threads that start servers
are daemons, so that Ctrl-C need not wait for a download to end; what they started dies with this process
(`tailrace.stack.guardian`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from tailrace.stack import KafkaBroker, PostgresServer, Source, kafka, postgres
from tailrace.stack.kafka_local import KAFKA
from tailrace.stack.places import cache_dir

TICK = 0.1
JARS_MB = 43


class Servers:
    """The pair. `close` ends what was started, however far it came."""

    def __init__(self, version: str) -> None:
        self._doing: dict[str, str] = {}
        self.postgres = PostgresServer(version, source=_source(postgres.VARIABLE), progress=self._hear("Postgres"))
        self.kafka = KafkaBroker(source=_source(kafka.VARIABLE), progress=self._hear("Kafka"))

    @property
    def ours(self) -> bool:
        """Whether both live and die with the demo; otherwise names must be unique and traces removed."""
        return self.postgres.local and self.kafka.local

    def start(self, busy: Callable[[str], None]) -> None:
        """Returns when both answer; `busy` is told what goes on, again and again."""
        failures: list[BaseException] = []

        def run(start: Callable[[], None]) -> None:
            try:
                start()
            except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                failures.append(error)

        starting = [
            threading.Thread(target=run, args=(server.start,), daemon=True) for server in (self.kafka, self.postgres)
        ]
        for thread in starting:
            thread.start()
        began = time.monotonic()
        while not failures and any(thread.is_alive() for thread in starting):
            starting[0 if starting[0].is_alive() else 1].join(TICK)
            busy(self._progress(time.monotonic() - began))
        if failures:
            raise failures[0]

    def close(self) -> None:
        try:
            self.postgres.close()
        finally:
            self.kafka.close()

    def _hear(self, name: str) -> Callable[[str], None]:
        def hear(message: str) -> None:
            self._doing[name] = message

        return hear

    def _progress(self, seconds: float) -> str:
        texts = list(self._doing.values()) or ["starting Postgres and Kafka"]
        text = "; ".join(texts)
        if "fetching" in text:
            text += f": {min(_fetched_mb(), JARS_MB)} of {JARS_MB} MB"
        return f"{text} ({seconds:.0f} s)"


def _source(variable: str) -> Source:
    return Source.ADDRESS if os.environ.get(variable, "").strip() else Source.LOCAL


def _fetched_mb() -> int:
    """How much of Kafka is in the growing cache entry; the resolver itself does not tell."""
    size = 0
    for jar in cache_dir().glob(f".kafka-{KAFKA}-jars.*/work/repository/**/*.jar*"):
        try:
            size += jar.stat().st_size
        except OSError:
            pass  # renamed just now: the next look counts it
    return size // 1_000_000
