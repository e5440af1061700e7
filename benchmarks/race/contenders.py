"""What races: Tailrace, and Debezium on a worker of Kafka Connect with exactly-once on or off."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.processes import Connector, watch
from benchmarks.race.arrivals import PARTITIONS, STAMPED_BY_BROKER, Topics
from benchmarks.race.outboxes import Outbox
from benchmarks.race.usage import cpu_seconds, peak_mb
from helpers.debezium import Debezium
from tailrace.testkit.stack import Stack

READ_TIMEOUT = 60.0
"""Seconds until a connector on a worker that has started must read the log."""
JAVA = ("-Xms256m", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
"""As Kafka's own start script, except for its heap of 2 GB."""
WORKER = {
    "offset.flush.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "0",
}
TUNING = {
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "max.queue.size.in.bytes": "134217728",
    "poll.interval.ms": "5",
    "tombstones.on.delete": "false",
    "skipped.operations": "u,d,t",
    "producer.override.acks": "all",
    "producer.override.linger.ms": "5",
    "producer.override.batch.size": "262144",
    "producer.override.buffer.memory": "67108864",
}
"""Larger batches and queues than Debezium's defaults, and hardly any pause between two polls."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A contender's way from one outbox to a topic of its own."""

    name: str
    outbox: Outbox

    @property
    def topic(self) -> str:
        return f"{self.name}.order"


class Begin(NamedTuple):
    """The moment from which a drain is measured, in ms since 1970, and the seconds of CPU that were used before."""

    ms: float
    cpu: float


class Contender(ABC):
    """The pipelines of one product, with the processes that run them."""

    NAME = ""
    SHORT = ""
    EXACTLY_ONCE = True

    def __init__(self, stack: Stack, folder: Path, outboxes: Sequence[Outbox]) -> None:
        self.stack = stack
        self.folder = folder
        self.pipelines = [Pipeline(f"{self.SHORT}_{outbox.name}", outbox) for outbox in outboxes]

    @property
    def topics(self) -> list[str]:
        return [each.topic for each in self.pipelines]

    @property
    def ignored(self) -> set[str]:
        return {event for each in self.pipelines for event in each.outbox.firsts}

    def prepare(self) -> None:
        """Publishes one event of each outbox and stops: what is committed from then on is a backlog."""
        for topic in self.topics:
            self.stack.kafka.create_topic(topic, PARTITIONS, STAMPED_BY_BROKER)
        self._create()
        self.start()
        try:
            for each in self.pipelines:
                with Topics(self.stack.kafka.bootstrap, [each.topic]) as topics:
                    # A connector that runs may not read yet, and then misses what is committed now.
                    each.outbox.first()
                    while not topics.stored(1, self.check, timeout=3.0):
                        each.outbox.first()
        finally:
            self.stop()

    @property
    def cpu(self) -> float:
        return cpu_seconds(self.pids)

    @property
    def peak_mb(self) -> float:
        return peak_mb(self.pids)

    @property
    @abstractmethod
    def pids(self) -> list[int]: ...

    @abstractmethod
    def _create(self) -> None:
        """Starts the processes for the first time, if they need to know the pipelines."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def begun(self) -> Begin:
        """Returns when a drain has begun, after waiting for it."""

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def check(self) -> None:
        """Raises if a pipeline has ended."""


class Tailrace(Contender):
    """One process for each pipeline, all settings at their defaults, JSON Schema validation on.

    A drain begins when the first process reads the log.
    """

    NAME = "Tailrace"
    SHORT = "tr"

    def __init__(self, stack: Stack, folder: Path, outboxes: Sequence[Outbox]) -> None:
        super().__init__(stack, folder, outboxes)
        self._running: list[Connector] = []
        self._begin = Begin(0, 0)

    def _create(self) -> None:
        for each in self.pipelines:
            each.outbox.pipeline(self.folder, each.name)

    def start(self) -> None:
        files = [self.folder / f"{each.name}.yaml" for each in self.pipelines]
        with ThreadPoolExecutor(len(files)) as threads:
            started = list(threads.map(_start, files))
        self._running = [connector for connector, _ in started]
        self._begin = Begin(min(each.ms for _, each in started), sum(each.cpu for _, each in started))

    def begun(self) -> Begin:
        return self._begin

    def stop(self) -> None:
        for each in self._running:
            each.stop()
        self._running = []

    def check(self) -> None:
        for each in self._running:
            if each.process.poll() is not None:
                raise RuntimeError(each.log.read_text()[-4000:])

    @property
    def pids(self) -> list[int]:
        return [each.process.pid for each in self._running]


def _start(file: Path) -> tuple[Connector, Begin]:
    connector = Connector(file)
    return connector, Begin(time.time() * 1000, connector.cpu_seconds())


class DebeziumAtLeastOnce(Contender):
    """A worker with one connector for each pipeline.

    A drain begins when the first connector reads the log: neither the start of Java nor of the connector counts.
    """

    NAME = "Debezium"
    SHORT = "dbz"
    EXACTLY_ONCE = False

    def __init__(self, stack: Stack, folder: Path, outboxes: Sequence[Outbox]) -> None:
        super().__init__(stack, folder, outboxes)
        self._worker = Debezium(
            stack.kafka,
            folder / f"{self.SHORT}_{outboxes[0].name}",
            exactly_once=self.EXACTLY_ONCE,
            settings=WORKER,
            java_options=JAVA,
        )
        self._created = False

    def _create(self) -> None:
        pass

    def start(self) -> None:
        self._worker.start()
        if not self._created:
            for each in self.pipelines:
                self._worker.put(each.name, each.outbox.connector(each.name, {**TUNING, "topic.prefix": each.name}))
            self._created = True

    def begun(self) -> Begin:
        watch(lambda: any(each.outbox.is_read() for each in self.pipelines), READ_TIMEOUT)
        return Begin(time.time() * 1000, self.cpu)

    def stop(self) -> None:
        self._worker.stop()

    def check(self) -> None:
        self._worker.check()

    @property
    def pids(self) -> list[int]:
        return [self._worker.pid]


class DebeziumExactlyOnce(DebeziumAtLeastOnce):
    NAME = "Debezium, exactly once"
    SHORT = "dbzeos"
    EXACTLY_ONCE = True


CONTENDERS: tuple[type[Contender], ...] = (Tailrace, DebeziumExactlyOnce, DebeziumAtLeastOnce)
