"""A service under test: an outbox, a pipeline file, connector processes, writers, and the oracle's verdict on it all.

Everything a fault test needs except the fault. Connectors run as processes of their own, as a user would run them, so
that they can be killed. A service has names of its own for everything it makes: tests share servers, nothing else.
What the database is and how it is asked is said by `Shop` (Postgres) and `Users` (MongoDB).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from helpers import warm_servers as warm
from tailrace.positions.base import Position
from tailrace.testkit.oracle import ConsumedRecord, OracleVerdict, backward_positions, check_delivery
from tailrace.testkit.stack import KafkaBroker, StackError, wait_until
from tailrace.testkit.topic_reader import RecordReader, consumed_records, read_all, stored_positions
from tailrace.testkit.workload.writer import WorkloadWriter


class Connector:
    """One `tailrace run` process, its output in a file."""

    def __init__(
        self, file: Path, log: Path, *arguments: str, program: Sequence[str] = warm.TAILRACE, **environ: str
    ) -> None:
        """`program` is what Python is given to run: another one stands in for a mutated connector."""
        self.log_file = log
        self.process = warm.Process(
            [*program, "run", str(file), "--log-json", *arguments], output=log, env={**os.environ, **environ}
        )

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def waits(self) -> list[dict[str, Any]]:
        """What it said each time that it waited for its next attempt."""
        lines = [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == "waiting" and "attempt" in line]

    def holds(self, what: str) -> int:
        """How many it has of a kind that /proc counts: `fd` or `task`."""
        return len(list(Path(f"/proc/{self.process.pid}/{what}").iterdir()))

    def says(self, text: str, timeout: float = 60) -> None:
        """Waits until its log contains `text`; a process that ended without it fails the test."""
        try:
            wait_until(lambda: text in self.log or not self.running, timeout)
        except StackError:
            pytest.fail(f"the connector did not say {text} within {timeout} s:\n{self.log}")
        assert text in self.log, f"the connector ended with {self.process.returncode}:\n{self.log}"

    def ended(self, timeout: float = 60) -> int:
        """Waits for its end; the exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the connector did not end within {timeout} s:\n{self.log}")

    def failed(self, error: str, *, exit_code: int = 3) -> None:
        """Waits for its end, which must be by this error."""
        code = self.ended()
        assert f'"error": "{error}"' in self.log, f"the connector ended with {code}, not by {error}:\n{self.log}"
        assert code == exit_code, self.log

    def stop(self, timeout: float = 30) -> int:
        """SIGTERM, then its exit code. The promise is 5 s, of a projection 10: a loaded machine may add to it."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended(timeout)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Service(ABC):
    """See the module's docstring. `settings` is what the pipeline file holds; change it before `start`."""

    ENTITIES: ClassVar[str]
    """What its topic is named after."""

    def __init__(self, kafka: KafkaBroker, folder: Path, name: str) -> None:
        self.kafka = kafka
        self.folder = folder
        self.name = name
        self.settings: dict[str, Any] = {}
        self.writers: list[WorkloadWriter] = []
        self.connectors: list[Connector] = []

    @property
    def topic(self) -> str:
        return f"{self.name}.{self.ENTITIES}"

    @property
    def letters(self) -> str:
        return f"{self.name}.dead-letters"

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.yaml"

    def register(self, schemas: Mapping[str, Any], aggregate: str) -> None:
        """Writes the folders of schemas, one for each type of event, and of topics, with one rule."""
        for kind, schema in schemas.items():
            (self.folder / "schemas" / kind).mkdir(parents=True)
            (self.folder / "schemas" / kind / "1.json").write_text(json.dumps(schema))
        (self.folder / "topics").mkdir()
        rule = {"topic": self.topic, "match": {"aggregate": aggregate}, "partitions": 3, "replication": 1}
        (self.folder / "topics" / f"{self.ENTITIES}.yaml").write_text(json.dumps(rule))

    def configure(self, **sections: Any) -> None:
        """Merges `sections` into the settings, one level deep, and writes the file (JSON is YAML)."""
        for name, value in sections.items():
            if isinstance(value, dict):
                self.settings[name] = {**self.settings.get(name, {}), **value}
            else:
                self.settings[name] = value
        self.file.write_text(json.dumps(self.settings))

    def start(
        self,
        *arguments: str,
        kill: str = "",
        wait: bool = True,
        program: Sequence[str] = ("-m", "tailrace"),
        **environ: str,
    ) -> Connector:
        """Runs a connector; `kill` arms a kill point, `wait` waits until it streams (not if it is to be killed)."""
        log = self.folder / f"connector-{len(self.connectors)}.log"
        if kill:
            environ["TAILRACE_KILL"] = kill
        connector = Connector(self.file, log, *arguments, program=program, **environ)
        self.connectors.append(connector)
        if wait and not kill:
            # A transaction that another test left open holds the end of the shared offsets topic back for a minute.
            connector.says('"running"', 120)
        return connector

    def writer(self, seed: int | None = None, **options: Any) -> WorkloadWriter:
        writer = self.make_writer(seed=len(self.writers) if seed is None else seed, **options)
        self.writers.append(writer)
        return writer

    @abstractmethod
    def make_writer(self, **options: Any) -> WorkloadWriter:
        """A writer of this service; `writer` keeps it in mind."""

    @abstractmethod
    def in_outbox(self) -> set[str]:
        """The ids that the outbox holds now."""

    def published(self) -> list[ConsumedRecord]:
        return consumed_records(read_all(self.kafka.bootstrap, [self.topic]))

    def dead_lettered(self) -> list[ConsumedRecord]:
        return consumed_records(read_all(self.kafka.bootstrap, [self.letters]))

    def undecided(self) -> bool:
        """Whether a transaction is open on the topic: readers of committed records see less than there is."""
        admin = self.kafka.admin()
        partitions = admin.list_topics(self.topic, timeout=10).topics[self.topic].partitions
        ends = [
            [
                found.result(10).offset
                for found in admin.list_offsets(
                    {TopicPartition(self.topic, number): OffsetSpec.latest() for number in partitions},
                    isolation_level=level,
                ).values()
            ]
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        ]
        return ends[0] != ends[1]

    def verdict(self) -> OracleVerdict:
        """What the oracle says now; positions are checked, too."""
        ledger = [entry for writer in self.writers for entry in writer.written]
        verdict = check_delivery(ledger, self.published(), self.dead_lettered(), in_table=self.in_outbox())
        verdict.positions = self.astray()
        return verdict

    def astray(self) -> list[str]:
        """What is wrong with the positions."""
        return backward_positions([position.progress for position in self.positions()])

    def caught_up(self, timeout: float = 60) -> OracleVerdict:
        """Waits until nothing committed is missing, then returns the verdict."""
        connector = self.connectors[-1]
        # One reader of each topic for as long as it is waited: to read all of it again takes longer each time.
        with (
            RecordReader(self.kafka.bootstrap, [self.topic]) as events,
            RecordReader(self.kafka.bootstrap, [self.letters]) as letters,
        ):

            def missing() -> bool:
                ledger = [entry for writer in self.writers for entry in writer.written]
                found = consumed_records(events.more()), consumed_records(letters.more())
                return bool(check_delivery(ledger, *found, in_table=self.in_outbox()).missing)

            try:
                wait_until(lambda: not missing() or not connector.running, timeout)
            except StackError:
                pytest.fail(f"not all events arrived within {timeout} s:\n{connector.log}")
        if not connector.running:
            print(connector.log)  # noqa: T201 - shown beside a verdict that nobody expected
        return self.verdict()

    def positions(self) -> Sequence[Position]:
        return stored_positions(self.kafka.bootstrap, self.name)

    def close(self) -> None:
        for writer in self.writers:
            writer.stop()
        for connector in self.connectors:
            if connector.running:
                connector.kill()
