"""A projection under test: a topic, worker processes, and the expected state.

Its handler appends each event's id to the history of its key, with a statement that is not idempotent: the history
shows events that were applied twice, skipped or out of order. The expected state is the fold of the topic from its
start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from helpers import warm_processes as warm
from helpers.service import Connector
from tailrace.testkit.stack import KafkaBroker, PostgresServer, wait_until
from tailrace.testkit.topic_reader import read_all

APP = """
from tailrace.projections import PostgresStore, Projection, Versions, projection_app

app = projection_app({name!r}, broker="kafka://{bootstrap}")
TABLES = "CREATE TABLE IF NOT EXISTS history (key text PRIMARY KEY, ids text[] NOT NULL)"
projection = Projection(app, {topic!r}, store=PostgresStore({dsn!r}, schema={schema!r}, tables=TABLES), {settings})

@projection.on()
async def append(event, effects):
    if event.data.get("fail"):
        raise ValueError("this one fails")
    await effects.execute(
        "INSERT INTO history VALUES (%s, ARRAY[%s]) ON CONFLICT (key) DO UPDATE SET ids = history.ids || EXCLUDED.ids",
        (event.key.decode(), event.id),
    )
{more}
"""


class Worker(Connector):
    """One `tailrace project` process."""

    def __init__(self, folder: Path, log: Path, target: str, *arguments: str, **environ: str) -> None:
        self.log_file = log
        self.process = warm.Process(
            [*warm.TAILRACE, "project", target, "--log-json", *arguments],
            output=log,
            cwd=folder,
            env={**os.environ, **environ},
            modules=warm.PROJECTION,
        )


class Projected:
    """See the module's docstring."""

    def __init__(self, postgres: PostgresServer, kafka: KafkaBroker, folder: Path, *, partitions: int = 3) -> None:
        self.postgres = postgres
        self.partitions = partitions
        self.kafka = kafka
        self.folder = folder
        self.name = f"history_{uuid.uuid4().hex[:8]}"
        self.group = f"{self.name}.projections"
        self.topic = f"{self.name}.orders"
        self.letters = f"{self.name}.dead-letters"
        self.dsn = postgres.dsn("postgres")
        self.workers: list[Worker] = []
        self._producer: Producer | None = None
        # Kept for ever: Kafka deletes by the records' timestamps, and tests publish old ones.
        kafka.create_topic(self.topic, partitions, {"retention.ms": "-1"})
        self.configure()

    def configure(self, settings: str = "within=0.01", more: str = "", *, app: str = APP) -> None:
        """Writes the app; `settings` are arguments of `Projection`, `more` follows the handler."""
        self.module = f"app_{self.name}"
        (self.folder / f"{self.module}.py").write_text(
            app.format(
                name=self.name,
                bootstrap=self.kafka.bootstrap,
                topic=self.topic,
                dsn=self.dsn,
                schema=self.name,
                settings=settings,
                more=more,
            )
        )

    def recreate_topic(self) -> None:
        """Deletes the topic, and creates an empty one with the same name."""
        admin = self.kafka.admin()
        for future in admin.delete_topics([self.topic]).values():
            future.result(30)
        wait_until(lambda: self.topic not in admin.list_topics(timeout=10).topics, 60, what="the topic to be gone")
        self.kafka.create_topic(self.topic, self.partitions)

    def start(self, *arguments: str, kill: str = "", wait: bool = True, **environ: str) -> Worker:
        if kill:
            environ["TAILRACE_KILL"] = kill
        log = self.folder / f"{self.name}-{len(self.workers)}.log"
        worker = Worker(self.folder, log, f"{self.module}:app", *arguments, **environ)
        self.workers.append(worker)
        if wait:
            worker.says('"reading"', 120)
        return worker

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `tailrace project` to its end."""
        return warm.run("project", f"{self.module}:app", *arguments, cwd=self.folder, modules=warm.PROJECTION)

    def publish(self, *events: Mapping[str, Any], commit: bool = True) -> list[str]:
        """Publishes events in one Kafka transaction. An event has `key`, and optionally `id`, `value`, `headers`."""
        if self._producer is None:
            self._producer = Producer(
                {
                    "bootstrap.servers": self.kafka.bootstrap,
                    "transactional.id": f"{self.name}-{uuid.uuid4().hex[:6]}",
                    "log_level": 0,
                }
            )
            self._producer.init_transactions(60)
        ids = []
        self._producer.begin_transaction()
        for event in events:
            ids.append(str(event.get("id") or uuid.uuid4()))
            self._producer.produce(
                self.topic,
                event.get("value", b"{}"),
                str(event["key"]).encode(),
                headers=[("id", ids[-1]), ("type", "Happened"), *(event.get("headers") or {}).items()],
                **({"timestamp": event["timestamp"]} if "timestamp" in event else {}),
            )
        if commit:
            self._producer.commit_transaction(60)
        else:
            self._producer.flush(30)
            self._producer.abort_transaction(60)
        return ids

    def published(self) -> list[Message]:
        """Returns all committed records, including those of a transaction that was committed a moment ago."""
        return read_all(self.kafka.bootstrap, [self.topic], include_open=True)

    def dead_letters(self) -> list[dict[str, str]]:
        """Returns the headers of the dead letters."""
        return [
            {name: value.decode() for name, value in message.headers() or [] if not name.startswith("kafka_dlt")}
            for message in read_all(self.kafka.bootstrap, [self.letters])
        ]

    def fold(self) -> dict[str, list[str]]:
        """Returns the expected state: the ids of each key in order, each once."""
        folded: dict[str, list[str]] = {}
        for message in sorted(self.published(), key=lambda each: (each.partition() or 0, each.offset() or 0)):
            history = folded.setdefault((message.key() or b"").decode(), [])
            event_id = dict(message.headers() or [])["id"].decode()
            if event_id not in history:
                history.append(event_id)
        return folded

    def execute(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True, options=f"-c search_path={self.name}") as connection:
            cursor = connection.execute(statement, parameters or None)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def state(self) -> dict[str, list[str]]:
        """Returns the state of the projection."""
        try:
            return dict(self.execute("SELECT key, ids FROM history"))
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return {}

    def caught_up(self, timeout: float = 120) -> None:
        """Waits until the state is the fold of the topic."""
        expected = self.fold()
        logs = "\n".join(worker.log[-2000:] for worker in self.workers[-2:])
        try:
            wait_until(lambda: self.state() == expected, timeout)
        except Exception:
            assert self.state() == expected, logs
            raise

    def committed(self) -> dict[int, int]:
        """Returns the group's committed offsets by partition."""
        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap, "group.id": self.group, "log_level": 0})
        try:
            asked = [TopicPartition(self.topic, number) for number in range(self.partitions)]
            found = consumer.committed(asked, timeout=30)
        finally:
            consumer.close()
        return {each.partition: each.offset for each in found if each.offset > 0}

    def close(self) -> None:
        for worker in self.workers:
            if worker.running:
                worker.process.send_signal(signal.SIGCONT)
                worker.kill()


@pytest.fixture
def projected(postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Projected]:
    made = Projected(postgres, kafka, tmp_path)
    yield made
    made.close()
