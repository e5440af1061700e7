"""A service of the demo, and one run of it.

A service is a database with an outbox, a pipeline file as a user would write it, and a connector. A run adds a writer,
a consumer and the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tailrace.positions.base import Position
from tailrace.testkit.demo.consumer import DemoConsumer, measure, percentile
from tailrace.testkit.demo.display import PipelineStatus
from tailrace.testkit.demo.process import Connector, DemoProcess
from tailrace.testkit.demo.report import Result
from tailrace.testkit.oracle import ConsumedRecord, WriteOutcome, backward_positions, check_delivery
from tailrace.testkit.stack import KafkaBroker
from tailrace.testkit.stack.paths import private_file
from tailrace.testkit.topic_reader import consumed_records, read_all, stored_positions
from tailrace.testkit.workload.writer import Mix, WorkloadWriter

SHOP = "shop"
"""The name of the database, and the prefix of the topics."""
KEYS = 200
MIX = Mix(rollback=0.1, invalid=0.02)
RECENT_DELIVERIES = 300

_SHARED_SETTINGS = """
schemas: {{folder: schemas}}  # every payload is validated; invalid events become dead letters
topics: {{folder: topics}}    # which events go to which topic

kafka:
  bootstrap: {bootstrap}
  dead_letter_topic: {dead_letters}
  offsets_topic: {offsets}
"""


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
    def source_text(self) -> str:
        """Returns the first part of the pipeline file: name, source and outbox."""

    def pipeline_text(self) -> str:
        """Returns the text of the pipeline file."""
        shared = _SHARED_SETTINGS.format(bootstrap=self.bootstrap, dead_letters=self.dead_letters, offsets=self.offsets)
        return self.source_text() + shared

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


class ServiceRun(DemoProcess):
    """A service in the scenario. `close` ends the writer and the consumer."""

    def __init__(self, service: Service, *, seed: int) -> None:
        super().__init__(f"{service.NAME} connector", service.connector, f"tailing {service.outbox}")
        self.service = service
        self.writer = service.writer(seed=seed, keys=KEYS, mix=MIX)
        self.consumer = DemoConsumer(service.bootstrap, service.topic, service.dead_letters, service.describe)
        self.committed = 0
        self.published: list[ConsumedRecord] = []
        """All records on the topic, after `result`."""
        self._counted = self._rolled_back = 0

    def require_health(self) -> None:
        """Raises the error of a thread, or of a connector that should be running."""
        for error in (self.writer.error, self.consumer.error):
            if error is not None:
                raise error
        super().require_health()

    def has_recovered(self) -> bool:
        """Returns whether an event that was committed after the last restart has arrived."""
        deliveries = self.consumer.deliveries
        return bool(deliveries) and deliveries[-1].committed_ms > self.downtimes[-1].running_ms

    def has_caught_up(self) -> bool:
        self.count()
        return len(self.consumer.ids) >= self.committed

    @property
    def arrived(self) -> int:
        """The number of events that the consumer has read from the topic."""
        return len(self.consumer.deliveries) - self.consumer.dead_letters

    def result(self) -> Result:
        """Reads the topics from the beginning and compares them with what the writer has written."""
        service = self.service
        self.published = consumed_records(read_all(service.bootstrap, [service.topic]))
        dead_letters = consumed_records(read_all(service.bootstrap, [service.dead_letters]))
        verdict = check_delivery(self.writer.written, self.published, dead_letters, in_table=service.in_outbox())
        positions = stored_positions(service.bootstrap, service.pipeline, service.offsets)
        verdict.positions = backward_positions([position.progress for position in positions])
        if positions:
            verdict.positions += service.confirmed_too_early(positions[-1])
        latency = measure(self.consumer.deliveries, self.downtimes)
        return Result(service.NAME, service.DATABASE, verdict, latency, self.downtimes)

    def status(self) -> PipelineStatus:
        self.count()
        consumer = self.consumer
        recent = [delivery.millis for delivery in consumer.deliveries[-RECENT_DELIVERIES:]]
        return PipelineStatus(
            name=self.service.NAME,
            connector=self.state,
            committed=self.committed,
            rolled_back=self._rolled_back,
            arrived=self.arrived,
            dead_letters=consumer.dead_letters,
            p50_ms=percentile(recent, 0.5),
        )

    def count(self) -> None:
        """Counts what was written since the last call."""
        for entry in self.writer.written[self._counted :]:
            self._counted += 1
            if entry.outcome is WriteOutcome.ROLLED_BACK:
                self._rolled_back += 1
            else:
                self.committed += 1

    def close(self) -> None:
        self.consumer.stop()
        self.writer.stop()
