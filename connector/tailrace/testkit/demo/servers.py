"""Postgres, MongoDB and Kafka of the demo's own, started at the same time, with progress, interruptible at any moment.

Servers named in TAILRACE_STACK_POSTGRES, TAILRACE_STACK_MONGO or TAILRACE_STACK_KAFKA are used instead. Docker is not:
pulling images says nothing for a minute, and the wheels and jars give the same servers everywhere. Nearly: there is no
wheel of MongoDB for some machines, and there the demo does without it. The threads that start servers are daemons, so
that Ctrl-C need not wait for a download to end; what they started dies with this process (`stack.reaper`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from tailrace.testkit.stack import KafkaBroker, MongoServer, PostgresServer, ServerChoice, StackError, mongo_local
from tailrace.testkit.stack.kafka_local import KAFKA
from tailrace.testkit.stack.paths import cache_dir
from tailrace.testkit.stack.server import StackServer

TICK = 0.1
JARS_MB = 43


class Servers:
    """All of them. `close` ends what was started, however far it came."""

    def __init__(self, version: str) -> None:
        self._told: dict[str, list[str]] = {}
        self.postgres = PostgresServer(version, choice=_choice(PostgresServer), progress=self._hear(PostgresServer))
        self.kafka = KafkaBroker(choice=_choice(KafkaBroker), progress=self._hear(KafkaBroker))
        self.mongo = (
            MongoServer(choice=_choice(MongoServer), progress=self._hear(MongoServer)) if _has_mongo() else None
        )

    @property
    def all(self) -> list[StackServer]:
        return [self.kafka, self.postgres, *([self.mongo] if self.mongo is not None else [])]

    @property
    def ours(self) -> bool:
        """Whether all live and die with the demo; otherwise names must be unique and traces removed."""
        return all(server.local for server in self.all)

    def start(self, busy: Callable[[str], None]) -> None:
        """Returns when all answer; `busy` is told what goes on, again and again."""
        failures: list[BaseException] = []

        def run(server: StackServer) -> None:
            try:
                server.start()
                self._told[server.NAME].clear()
            except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                failures.append(error)

        starting = [threading.Thread(target=run, args=(server,), daemon=True) for server in self.all]
        for thread in starting:
            thread.start()
        began = time.monotonic()
        while not failures and (left := [thread for thread in starting if thread.is_alive()]):
            left[0].join(TICK)
            busy(self._progress(time.monotonic() - began))
        if failures:
            raise failures[0]

    def close(self) -> None:
        with ExitStack() as last:
            for server in self.all:
                last.callback(server.close)

    def _hear(self, kind: type[StackServer]) -> Callable[[str], None]:
        return self._told.setdefault(kind.NAME, []).append

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


def _choice(kind: type[StackServer]) -> ServerChoice:
    return ServerChoice.ADDRESS if os.environ.get(kind.VARIABLE, "").strip() else ServerChoice.LOCAL


def _has_mongo() -> bool:
    """Whether somebody named one, or this machine can run one."""
    if _choice(MongoServer) is ServerChoice.ADDRESS:
        return True
    try:
        mongo_local.program()
    except StackError:
        return False
    return True


def _fetched_mb() -> int:
    """How much of Kafka is in the growing cache entry; the resolver itself does not tell."""
    size = 0
    for jar in cache_dir().glob(f".kafka-{KAFKA}-jars.*/fetched/repository/**/*.jar*"):
        try:
            size += jar.stat().st_size
        except OSError:
            pass  # renamed just now: the next look counts it
    return size // 1_000_000
