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
        self._told: dict[str, list[str]] = {"Postgres": [], "Kafka": []}
        self.postgres = PostgresServer(version, source=_source(postgres.VARIABLE), progress=self._hear("Postgres"))
        self.kafka = KafkaBroker(source=_source(kafka.VARIABLE), progress=self._hear("Kafka"))

    @property
    def ours(self) -> bool:
        """Whether both live and die with the demo; otherwise names must be unique and traces removed."""
        return self.postgres.local and self.kafka.local

    def start(self, busy: Callable[[str], None]) -> None:
        """Returns when both answer; `busy` is told what goes on, again and again."""
        failures: list[BaseException] = []

        def run(name: str, start: Callable[[], None]) -> None:
            try:
                start()
                self._told[name].clear()
            except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                failures.append(error)

        starting = [
            threading.Thread(target=run, args=(name, start), daemon=True)
            for name, start in (("Kafka", self.kafka.start), ("Postgres", self.postgres.start))
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
        return self._told[name].append

    def _progress(self, seconds: float) -> str:
        # Copies: a server that is up clears its list, from its own thread.
        told = [current(list(messages)) for messages in self._told.values()]
        text = "; ".join(filter(None, told)) or "waiting for answers"
        if "fetching" in text:
            text += f": {min(_fetched_mb(), JARS_MB)} of {JARS_MB} MB"
        return f"{text} ({seconds:.0f} s)"


def current(told: list[str]) -> str:
    """The step that goes on. Preparing Kafka includes a start, which is not the one that is waited for."""
    if len(told) > 1 and told[-2].startswith("preparing"):
        return told[-2]
    return told[-1] if told else ""


def _source(variable: str) -> Source:
    return Source.ADDRESS if os.environ.get(variable, "").strip() else Source.LOCAL


def _fetched_mb() -> int:
    """How much of Kafka is in the growing cache entry; the resolver itself does not tell."""
    size = 0
    for jar in cache_dir().glob(f".kafka-{KAFKA}-jars.*/fetched/repository/**/*.jar*"):
        try:
            size += jar.stat().st_size
        except OSError:
            pass  # renamed just now: the next look counts it
    return size // 1_000_000
