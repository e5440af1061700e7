"""A shop: a database with an outbox, a pipeline file, connector processes, writers, and the oracle's verdict on it all.

Everything a fault test needs except the fault. Connectors run as processes of their own, as a user would run them, so
that they can be killed. A shop has names of its own for database, topics and slot: tests share servers, nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tailrace.position import Position
from tailrace.proof.oracle import Sighting, Verdict, backward, judge
from tailrace.proof.reader import read_all, sightings, stored_positions
from tailrace.proof.workload import SHOP_DDL, Writer, ids_in_table
from tailrace.stack import KafkaBroker, PostgresServer, StackError, wait_until

SCHEMA = {
    "type": "object",
    "required": ["order", "revision", "amount", "currency"],
    "properties": {
        "order": {"type": "string"},
        "revision": {"type": "integer", "minimum": 1},
        "amount": {"type": "number"},
        "currency": {"type": "string", "pattern": "^[A-Z]{3}$"},
    },
}


class Connector:
    """One `tailrace run` process, its output in a file."""

    def __init__(
        self, file: Path, log: Path, *arguments: str, program: Sequence[str] = ("-m", "tailrace"), **environ: str
    ) -> None:
        """`program` is what Python is given to run: another one stands in for a mutated connector."""
        self.log_file = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *program, "run", str(file), "--log-json", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environ},
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

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

    def stop(self, timeout: float = 10) -> int:
        """SIGTERM, then its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended(timeout)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Shop:
    """See the module's docstring. `settings` is what the pipeline file holds; change it before `start`."""

    postgres: PostgresServer
    kafka: KafkaBroker
    folder: Path
    name: str
    dsn: str
    settings: dict[str, Any] = field(default_factory=dict)
    writers: list[Writer] = field(default_factory=list)
    connectors: list[Connector] = field(default_factory=list)

    @property
    def topic(self) -> str:
        return f"{self.name}.orders"

    @property
    def letters(self) -> str:
        return f"{self.name}.dead-letters"

    @property
    def slot(self) -> str:
        return f"tailrace_{self.name}"

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.yaml"

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
            connector.says('"running"')
        return connector

    def writer(self, seed: int | None = None, **options: Any) -> Writer:
        writer = Writer(self.dsn, seed=len(self.writers) if seed is None else seed, **options)
        self.writers.append(writer)
        return writer

    def execute(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """One statement as the superuser in the shop's database."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)  # type: ignore[call-overload]
            # Not by `description`: it is None for rows without columns, too.
            found = cursor.pgresult is not None and cursor.pgresult.status == psycopg.pq.ExecStatus.TUPLES_OK
            return cursor.fetchall() if found else []

    def insert(self, payload: str, *, kind: str = "OrderPlaced", key: str = "k", seq: str = "") -> str:
        """One outbox row by hand, in a transaction of its own; returns its id."""
        event = str(uuid.uuid4())
        self.execute(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (%s, 'order', %s, %s, %s)",
            event, key, kind, payload,
        )  # fmt: skip
        return event

    def published(self) -> list[Sighting]:
        return sightings(read_all(self.kafka.bootstrap, [self.topic]))

    def dead_lettered(self) -> list[Sighting]:
        return sightings(read_all(self.kafka.bootstrap, [self.letters]))

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

    def verdict(self) -> Verdict:
        """What the oracle says now; positions are checked, too."""
        ledger = [entry for writer in self.writers for entry in writer.ledger]
        verdict = judge(ledger, self.published(), self.dead_lettered(), in_table=ids_in_table(self.dsn))
        # The slot first: what is confirmed now must have been stored before.
        confirmed = self.confirmed_lsn()
        positions = self.positions()
        verdict.positions = backward([position.progress for position in positions])
        if positions and confirmed is not None and confirmed > positions[-1].lsn:
            verdict.positions.append(f"the slot is confirmed to {confirmed}, stored is {positions[-1].lsn}")
        return verdict

    def caught_up(self, timeout: float = 60) -> Verdict:
        """Waits until nothing committed is missing, then returns the verdict."""
        connector = self.connectors[-1]
        try:
            wait_until(lambda: not self.verdict().missing or not connector.running, timeout)
        except StackError:
            pytest.fail(f"not all events arrived within {timeout} s:\n{connector.log}")
        return self.verdict()

    def positions(self) -> list[Position]:
        return stored_positions(self.kafka.bootstrap, self.name)

    def confirmed_lsn(self) -> int | None:
        rows = self.execute(
            "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s", self.slot
        )
        return int(rows[0][0]) if rows and rows[0][0] is not None else None

    def close(self) -> None:
        for writer in self.writers:
            writer.stop()
        for connector in self.connectors:
            if connector.running:
                connector.kill()


def open_shop(postgres: PostgresServer, kafka: KafkaBroker, folder: Path, **source: Any) -> Shop:
    """A new shop on the given servers, its outbox empty, its pipeline file written, nothing running."""
    name = f"shop_{uuid.uuid4().hex[:8]}"
    shop = Shop(postgres, kafka, folder, name, postgres.create_database(name))
    shop.execute(SHOP_DDL)
    for kind in ("OrderPlaced", "OrderChanged"):
        (folder / "schemas" / kind).mkdir(parents=True)
        (folder / "schemas" / kind / "1.json").write_text(json.dumps(SCHEMA))
    (folder / "topics").mkdir()
    spec = {"topic": shop.topic, "match": {"aggregate": "order"}, "partitions": 3, "replication": 1}
    (folder / "topics" / "orders.yaml").write_text(json.dumps(spec))
    shop.configure(
        pipeline=name,
        source={"postgres": shop.dsn, "table": "public.outbox", **source},
        outbox={"columns": {"timestamp": "created_at"}},
        schemas={"folder": "schemas"},
        topics={"folder": "topics"},
        kafka={"bootstrap": kafka.bootstrap, "dead_letter_topic": shop.letters},
    )
    return shop


def close_shop(shop: Shop) -> None:
    """Ends its processes and takes its slot off the shared server, so that no WAL is kept for it."""
    shop.close()
    with shop.postgres.connect() as connection:

        def gone() -> bool:
            slots = connection.execute(
                "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", (shop.name,)
            ).fetchall()
            for slot, pid in slots:
                if pid is not None:
                    connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
                    continue
                try:
                    connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
                except psycopg.errors.ObjectInUse:
                    pass  # the next look tells
            return not slots

        wait_until(gone, what=f"the end of the slots of {shop.name}")
        connection.execute(f'DROP DATABASE "{shop.name}" WITH (FORCE)')  # type: ignore[call-overload]


@pytest.fixture
def shop(postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    """A shop on the shared servers, Postgres 16."""
    shop = open_shop(postgres, kafka, tmp_path)
    yield shop
    close_shop(shop)


@pytest.fixture
def shop18(postgres18: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    """The same on Postgres 18."""
    shop = open_shop(postgres18, kafka, tmp_path)
    yield shop
    close_shop(shop)


@pytest.fixture
def make_topic(kafka: KafkaBroker) -> Callable[..., None]:
    """Creates a topic by hand, with any configuration."""

    def make(topic: str, partitions: int = 1, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        settings = {name.replace("_", "."): value for name, value in config.items()}
        admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(20)

    return make
