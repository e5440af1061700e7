"""A service under test: an outbox, a pipeline file, connector processes, writers, and the oracle's verdict.

It is everything a fault test needs except the fault. Connectors run as separate processes, so that they can be killed.
Each service has unique names: tests share only the servers. `Shop` (Postgres) and `Users` (MongoDB) are the subclasses.
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

from helpers import warm_processes as warm
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
        """`program` is what Python runs; mutation tests give another one."""
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
        """The log lines of its waits before a retry."""
        lines = [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == "waiting" and "attempt" in line]

    def holds(self, what: str) -> int:
        """Returns how many file descriptors (`fd`) or threads (`task`) the process has."""
        return len(list(Path(f"/proc/{self.process.pid}/{what}").iterdir()))

    def says(self, text: str, timeout: float = 120) -> None:
        """Waits until its log contains `text`; fails the test if the process ends without it."""
        try:
            wait_until(lambda: text in self.log or not self.running, timeout)
        except StackError:
            pytest.fail(f"the connector did not log {text} within {timeout} s:\n{self.log}")
        assert text in self.log, f"the connector ended with {self.process.returncode}:\n{self.log}"

    def ended(self, timeout: float = 120) -> int:
        """Waits until it has ended; returns the exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the connector did not end within {timeout} s:\n{self.log}")

    def failed(self, error: str, *, exit_code: int = 3) -> None:
        """Waits until it has ended, which must be with this error."""
        code = self.ended()
        assert f'"error": "{error}"' in self.log, f"the connector ended with {code}, not with {error}:\n{self.log}"
        assert code == exit_code, self.log

    def stop(self, timeout: float = 60) -> int:
        """Sends SIGTERM; returns the exit code. The limit is 5 s (projection: 10 s) on an idle machine."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended(timeout)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Service(ABC):
    """A service with an outbox. `settings` is the content of the pipeline file; change it before `start`."""

    ENTITIES: ClassVar[str]
    """The last part of its topic's name."""

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
        """Writes the folder of schemas, and the folder of topics with one routing rule."""
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
        """Runs a connector; `kill` arms a failpoint; `wait` waits until it streams, unless `kill` is given."""
        log = self.folder / f"connector-{len(self.connectors)}.log"
        if kill:
            environ["TAILRACE_KILL"] = kill
        connector = Connector(self.file, log, *arguments, program=program, **environ)
        self.connectors.append(connector)
        if wait and not kill:
            # A transaction that another test left open delays reading the shared offsets topic for a minute.
            connector.says('"running"', 120)
        return connector

    def writer(self, seed: int | None = None, **options: Any) -> WorkloadWriter:
        writer = self.make_writer(seed=len(self.writers) if seed is None else seed, **options)
        self.writers.append(writer)
        return writer

    @abstractmethod
    def make_writer(self, **options: Any) -> WorkloadWriter:
        """Creates a writer of this service; `writer` also stops it at the end."""

    @abstractmethod
    def in_outbox(self) -> set[str]:
        """Returns the ids in the outbox."""

    def published(self) -> list[ConsumedRecord]:
        return consumed_records(read_all(self.kafka.bootstrap, [self.topic]))

    def dead_lettered(self) -> list[ConsumedRecord]:
        return consumed_records(read_all(self.kafka.bootstrap, [self.letters]))

    def undecided(self) -> bool:
        """Returns whether a transaction is open on the topic, hidden from `read_committed` consumers."""
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
        """Returns the oracle's verdict, including the positions."""
        written = [event for writer in self.writers for event in writer.written]
        verdict = check_delivery(written, self.published(), self.dead_lettered(), in_table=self.in_outbox())
        verdict.positions = self.wrong_positions()
        return verdict

    def wrong_positions(self) -> list[str]:
        """Returns the stored positions that are wrong."""
        return backward_positions([position.progress for position in self.positions()])

    def caught_up(self, timeout: float = 120) -> OracleVerdict:
        """Waits until nothing committed is missing, then returns the verdict."""
        connector = self.connectors[-1]
        # One reader per topic for the whole wait: reading everything again would take longer each time.
        with (
            RecordReader(self.kafka.bootstrap, [self.topic]) as events,
            RecordReader(self.kafka.bootstrap, [self.letters]) as letters,
        ):

            def missing() -> bool:
                written = [event for writer in self.writers for event in writer.written]
                found = consumed_records(events.more()), consumed_records(letters.more())
                return bool(check_delivery(written, *found, in_table=self.in_outbox()).missing)

            try:
                wait_until(lambda: not missing() or not connector.running, timeout)
            except StackError:
                pytest.fail(f"not all events arrived within {timeout} s:\n{connector.log}")
        if not connector.running:
            print(connector.log)  # noqa: T201 - shown if the test fails
        return self.verdict()

    def positions(self) -> Sequence[Position]:
        return stored_positions(self.kafka.bootstrap, self.name)

    def close(self) -> None:
        for writer in self.writers:
            writer.stop()
        for connector in self.connectors:
            if connector.running:
                connector.kill()
