"""One connector process in a simulation: the real supervisor, wiring, loop, publisher, source and state.

Replaced are only the edges: the clients of Kafka and Postgres, threads, clocks and polls (by name, in the modules that
use them), the queries about the publication, and the writers of side information (position history, marks, alerts).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import tailrace.kafka.client
import tailrace.kafka.publisher
import tailrace.kafka.reader
import tailrace.kafka.rejected_records
import tailrace.kafka.topics
import tailrace.pipeline.loop
import tailrace.pipeline.processor
import tailrace.state.offsets
import tailrace.state.owner_watch
import tailrace.state.ownership
import tailrace.state.status
import tailrace.worker.metrics
import tailrace.worker.outage
import tailrace.worker.standby
import tailrace.worker.supervisor
from simulation.kafka_client import KafkaClients
from simulation.scheduler import Process, Simulation, Task, getcurrent
from simulation.stdlib import Wakeup, simulated_threading, simulated_time
from tailrace.config.model import PipelineSettings
from tailrace.errors import Reason, Rejected
from tailrace.event import OutboxEvent
from tailrace.kafka.publisher import Publisher
from tailrace.kafka.topic_limits import TopicLimits
from tailrace.state.stored_state import StoredState
from tailrace.worker.metrics import PipelineMetrics
from tailrace.worker.supervisor import Supervisor
from tailrace.worker.wiring import Wiring, wire

BATCH_RECORDS = 4
"""Small, so that transactions are cut."""
TOPIC, LETTERS, OFFSETS = "order-events", "p-dead-letters", "tailrace-offsets"
SETTINGS = {
    "pipeline": "p",
    "kafka": {"bootstrap": "kafka:9092", "offsets_topic": OFFSETS, "dead_letter_topic": LETTERS},
    "topics": {"template": TOPIC},
    "limits": {"batch_records": BATCH_RECORDS},
    "retries": {"base": 0.2, "maximum": 5.0},
}
INVALID = "x"
"""Rows whose id ends with it are rejected by the validation, and become dead letters."""


class Topics:
    """A stand-in for the topic manager: all topics exist."""

    known: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.limits = TopicLimits()

    def require(self, _topics: Any, _alive: Any = None) -> None: ...

    def vanished(self, _topics: Any) -> list[str]:
        return []

    def learn(self, _topics: Any) -> None: ...


class Admin:
    """A stand-in for the admin client."""

    def __init__(self, clients: KafkaClients) -> None:
        self._clients = clients

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        return self._clients.consumer({}).list_topics(topic, timeout)

    def create(self, topic: str) -> None:
        self._clients.broker.create(topic, 1)


class Quiet:
    """A stand-in for writers of side information: every method does nothing."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **__: None


class SimulatedWiring(Wiring):
    """The real wiring, without side information and without the management of topics."""

    __slots__ = ()

    def publisher(self, admin: Any, wakeup: Any, alert: Any, *_: Any, **options: Any) -> Publisher:
        admin.create(LETTERS)
        options["positions"] = options.pop("stored", None) or StoredState(self.kafka)
        topics: Any = Topics()
        return Publisher(self.kafka, topics, wakeup=wakeup, **options)

    def parking(self, admin: Any) -> None:
        return None

    def sequences(self, admin: Any) -> None:
        return None

    def position_recorder(self, *_: Any) -> Any:
        return Quiet()

    def ensure_offsets(self, admin: Any) -> None: ...

    def alerts(self, *_: Any) -> Any:
        return Quiet()

    def probe(self, error: Any) -> None:
        return None

    def metrics(self) -> PipelineMetrics:
        return PipelineMetrics(frozenset())

    def diagnosed(self, error: Any) -> Any:
        return error

    def check_same_log(self, stored: Any) -> None: ...

    def processor(self, *, with_rules: bool = True) -> Any:
        return replace(super().processor(with_rules=with_rules), validate=_validate)


def _validate(event: OutboxEvent, _topic: str) -> tuple[None, None]:
    if event.id.endswith(INVALID):
        raise Rejected(Reason.SCHEMA_VALIDATION_FAILED, "the row is invalid")
    return None, None


def make_supervisor(simulation: Simulation, source: dict[str, Any]) -> Supervisor:
    """A new process of the pipeline; call it in a task of the process."""
    wired = _wired(json.dumps(source))
    parts = {name: getattr(wired, name) for name in Wiring.__dataclass_fields__}
    wiring = SimulatedWiring(**{**parts, "limits": TopicLimits(), "refused": {}})
    return Supervisor(wiring, chance=simulation.random.random)


@lru_cache
def _wired(source: str) -> Wiring:
    return wire(PipelineSettings.model_validate({**SETTINGS, "source": json.loads(source)}))


@contextmanager
def simulated(simulation: Simulation, clients: KafkaClients, edges: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Puts the simulated edges in place of the real ones."""
    threading, clock = simulated_threading(simulation), simulated_time(simulation)
    ids = iter(range(1_000_000))
    processes: dict[str, Process] = {}

    def this_process() -> str:
        task = getcurrent()
        process = task.process if isinstance(task, Task) else None
        name = f"{process.host} {process.name}" if process else ""
        if process:
            processes[name] = process
        return name

    def has_ended(identity: str) -> bool:
        """Known only on the same host."""
        task, process = getcurrent(), processes.get(identity)
        here = task.process.host if isinstance(task, Task) else ""
        return process is not None and process.host == here and not process.alive

    state, kafka, worker = tailrace.state, tailrace.kafka, tailrace.worker
    replaced: list[tuple[Any, str, Any]] = [
        (tailrace.pipeline.loop, "time", clock),
        (tailrace.pipeline.processor, "time", clock),
        (kafka.publisher, "time", clock),
        (kafka.publisher, "threading", threading),
        (kafka.publisher, "Producer", clients.producer),
        (kafka.rejected_records, "time", clock),
        (kafka.rejected_records, "Producer", clients.producer),
        (kafka.reader, "time", clock),
        (kafka.reader, "Consumer", clients.consumer),
        (kafka.client, "Producer", clients.producer),
        (kafka.client, "Consumer", clients.consumer),
        (kafka.topics, "time", clock),
        (state.offsets, "time", clock),
        (state.status, "time", clock),
        (state.owner_watch, "time", clock),
        (state.owner_watch, "threading", threading),
        (state.owner_watch, "has_ended", has_ended),
        (state.ownership, "time", clock),
        (state.ownership, "threading", threading),
        (state.ownership, "Producer", clients.producer),
        (state.ownership, "this_process", this_process),
        (worker.standby, "time", clock),
        (worker.metrics, "time", clock),
        (worker.supervisor, "time", clock),
        (worker.supervisor, "threading", threading),
        (worker.supervisor, "gc", SimpleNamespace(collect=lambda: 0)),
        (worker.supervisor, "uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"i{next(ids)}"))),
        (worker.supervisor, "Wakeup", Wakeup),
        (worker.supervisor, "telemetry", SimpleNamespace(start=lambda *_: Quiet())),
        (SimulatedWiring, "admin", lambda _wiring: Admin(clients)),
        *edges,
    ]
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with ExitStack() as stack:
            for owner, name, value in replaced:
                stack.enter_context(mock.patch.object(owner, name, value))
            yield
    finally:
        logging.disable(level)
