"""The outboxes that the contenders drain, one in each database, and the bare readers of the log behind them."""

from __future__ import annotations

import sys
import uuid
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier
from psycopg.types.json import Jsonb

from benchmarks.backlog import EVENTS_DDL, SCHEMA, Shape, write_backlog
from benchmarks.latency import PGBENCH, pgbench
from benchmarks.mongo import event, receive_changes, write_documents, write_mongo_pipeline
from benchmarks.processes import Drain, receive, write_pipeline
from benchmarks.race.usage import cpu_seconds
from helpers.debezium import mongo_config, postgres_config
from tailrace.testkit.stack import Stack, wait_until

SMALL = 200
"""About the size of a payload without a longer note, in bytes."""
NOTE = 60
RACE_SCHEMA = {**SCHEMA, "properties": {**SCHEMA["properties"], "note": {"type": "string"}}}  # type: ignore[dict-item]
STAMP = "lpad((extract(epoch FROM clock_timestamp()) * 1000)::text, 100, '0')"
"""The time of a transaction as its note, for the latency."""


class Outbox(ABC):
    """An outbox; `firsts` are the events that each contender was prepared with, which nobody counts."""

    DATABASE = ""
    BARE = ""

    def __init__(self, stack: Stack, name: str) -> None:
        self.stack = stack
        self.name = f"{self.DATABASE}_{name}"
        self.firsts: set[str] = set()

    def first(self) -> str:
        """Commits one event; returns its id."""
        new = {**event(0), "_id": str(uuid.uuid4())}
        self.firsts.add(new["_id"])
        self._insert(new)
        return str(new["_id"])

    @abstractmethod
    def _insert(self, new: dict[str, Any]) -> None: ...

    @abstractmethod
    def prepare_bare(self) -> None:
        """Keeps the position from which the bare reader starts."""

    @abstractmethod
    def fill(self, shape: Shape) -> None:
        """Commits the backlog."""

    @abstractmethod
    def bare(self, events: int) -> Drain:
        """Drains the backlog with the bare reader, which throws it away."""

    @abstractmethod
    def is_read(self) -> bool:
        """Whether anybody reads the log for this outbox now; of MongoDB, for any outbox."""

    @abstractmethod
    def source_cpu(self) -> float:
        """Returns the seconds of CPU of the processes that read the log in the database, or of all of MongoDB."""

    @abstractmethod
    def pipeline(self, folder: Path, name: str) -> Path:
        """Writes the pipeline's file."""

    @abstractmethod
    def connector(self, name: str, tuning: dict[str, str]) -> dict[str, str]:
        """Returns the configuration of Debezium's connector."""

    @abstractmethod
    def writers(self, folder: Path, rate: int, seconds: int) -> list[list[str]]:
        """Returns the commands that together commit single events at a rate, each with its time as its note."""

    @abstractmethod
    def drop(self) -> None:
        """Removes the outbox and all that keeps the database's log for it."""


class PostgresOutbox(Outbox):
    DATABASE = "postgres"
    BARE = "pg_recvlogical"
    CLIENT_RATE = 200
    """Transactions a second that are asked of one client: each waits for the disk."""

    def __init__(self, stack: Stack, name: str, size: int = SMALL) -> None:
        super().__init__(stack, name)
        self.dsn = stack.postgres.create_database(self.name)
        self._end = ""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(EVENTS_DDL.replace(f"'x', {NOTE}", f"'x', {size - SMALL + NOTE}").encode())

    def _insert(self, new: dict[str, Any]) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO outbox VALUES (%s, %s, %s, %s, %s)", [*list(new.values())[:4], Jsonb(new["payload"])]
            )

    def prepare_bare(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("CREATE PUBLICATION bare FOR TABLE outbox")
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [f"bare_{self.name}"])

    def fill(self, shape: Shape) -> None:
        self._end = write_backlog(self.dsn, shape)

    def bare(self, events: int) -> Drain:
        return receive(self.stack.postgres, self.dsn, f"bare_{self.name}", "bare", self._end, events)

    def is_read(self) -> bool:
        with self.stack.postgres.connect() as connection:
            query = "SELECT count(*) FROM pg_replication_slots WHERE database = %s AND active"
            return connection.execute(query, [self.name]).fetchone() != (0,)

    def source_cpu(self) -> float:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            walsenders = connection.execute("SELECT pid FROM pg_stat_replication").fetchall()
            return cpu_seconds(pid for (pid,) in walsenders)

    def pipeline(self, folder: Path, name: str) -> Path:
        return write_pipeline(folder, name, self.dsn, self.stack.kafka.bootstrap, RACE_SCHEMA)

    def connector(self, name: str, tuning: dict[str, str]) -> dict[str, str]:
        config: dict[str, str] = postgres_config(self.dsn, name, name, **tuning)
        return config

    def writers(self, folder: Path, rate: int, seconds: int) -> list[list[str]]:
        script = folder / f"{self.name}.sql"
        clients = max(4, rate // self.CLIENT_RATE)
        command = pgbench(self.stack.postgres, self.dsn, script, rate=rate, seconds=seconds, clients=clients)
        script.write_text(PGBENCH.replace("repeat('x', 100)", STAMP).replace("\n", " "))
        return [command]

    def drop(self) -> None:
        wait_until(lambda: not self.is_read(), 60, what=f"the end of all readers of {self.name}")
        with self.stack.postgres.connect() as connection:
            drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s"
            connection.execute(drop, [self.name])
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(self.name)))


class MongoOutbox(Outbox):
    DATABASE = "mongo"
    BARE = "change stream"
    WRITER_RATE = 500
    """Transactions a second that are asked of one writer, which waits for each."""

    def __init__(self, stack: Stack, name: str, size: int = SMALL) -> None:
        super().__init__(stack, name)
        assert stack.mongo is not None
        self.mongo = stack.mongo
        self._note = size - SMALL + NOTE
        self._token: dict[str, Any] = {}
        with self.mongo.client() as client:
            client[self.name].create_collection("outbox")

    def _insert(self, new: dict[str, Any]) -> None:
        with self.mongo.client() as client:
            client[self.name].outbox.insert_one(new)

    def prepare_bare(self) -> None:
        with self.mongo.client() as client, client[self.name].outbox.watch() as stream:
            stream.try_next()
            token = stream.resume_token
            assert token is not None
            self._token = dict(token)

    def fill(self, shape: Shape) -> None:
        with self.mongo.client() as client:
            write_documents(client, self.name, shape, self._note)

    def bare(self, events: int) -> Drain:
        return receive_changes("batches", self.mongo.uri, self.name, self._token, events)

    def is_read(self) -> bool:
        cursors: list[dict[str, Any]] = [
            {"$currentOp": {"allUsers": True, "idleCursors": True}},
            {"$match": {"cursor.originatingCommand.pipeline.0.$changeStream": {"$exists": True}}},
        ]
        with self.mongo.client() as client:
            return any(client.admin.aggregate(cursors))

    def source_cpu(self) -> float:
        return cpu_seconds([self.mongo.pid])

    def pipeline(self, folder: Path, name: str) -> Path:
        return write_mongo_pipeline(
            folder, name, self.name, self.mongo.uri, self.stack.kafka.bootstrap, schema=RACE_SCHEMA
        )

    def connector(self, name: str, tuning: dict[str, str]) -> dict[str, str]:
        config: dict[str, str] = mongo_config(self.mongo.uri, self.name, name, **tuning)
        return {**config, "collection.include.list": f"{self.name}.outbox"}

    def writers(self, folder: Path, rate: int, seconds: int) -> list[list[str]]:
        count = max(1, rate // self.WRITER_RATE)
        command = [sys.executable, "-m", "benchmarks.mongo_writer", self.mongo.uri, self.name]
        return [[*command, str(rate // count), str(seconds), str(number * 5000)] for number in range(count)]

    def drop(self) -> None:
        with self.mongo.client() as client:
            client.drop_database(self.name)


OutboxClass = type[PostgresOutbox] | type[MongoOutbox]
OUTBOXES: tuple[OutboxClass, ...] = (PostgresOutbox, MongoOutbox)
