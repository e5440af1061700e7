"""The load of a soak: writers at a steady rate, a purge of old rows, and a consumer that counts."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition
from pymongo import MongoClient

from tailrace.testkit.workload.users import MAJORITY

BATCH = 50
"""Events of a transaction."""
KEPT_SECONDS = 120
"""How long rows stay in the outbox."""
PURGE_SECONDS = 15.0
INSERT = """
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
SELECT gen_random_uuid(), 'order', 'order-' || (random() * 5000)::int, 'OrderPlaced', jsonb_build_object(
    'order', 'o', 'customer', 'c', 'amount', 1.25, 'currency', 'EUR', 'status', 'placed', 'revision', 1,
    'note', repeat('x', 100))
FROM generate_series(1, %s)
"""


class Load:
    """Threads that run until `stop`; `error` is the first that one of them raised."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.written = {"postgres": 0, "mongo": 0}
        self.consumed = {"postgres": 0, "mongo": 0}
        self._stopped = threading.Event()
        self._writing = threading.Event()
        self._writing.set()
        self._threads: list[tuple[threading.Thread, bool]] = []

    def start(self, name: str, work: Callable[[], None], *, writes: bool) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised by the soak
                self.error = self.error or error

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append((thread, writes))
        thread.start()

    def stop_writing(self) -> None:
        self._writing.clear()
        for thread, writes in self._threads:
            if writes:
                thread.join()

    def stop(self) -> None:
        self.stop_writing()
        self._stopped.set()
        for thread, _ in self._threads:
            thread.join()

    def write(self, name: str, rate: float, transaction: Callable[[], None]) -> None:
        """Runs transactions of BATCH events at `rate` events a second. After a delay it catches up."""
        due = time.monotonic()
        while self._writing.is_set():
            transaction()
            self.written[name] += BATCH
            due += BATCH / rate
            time.sleep(max(0.0, due - time.monotonic()))

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        while not self._stopped.wait(seconds):
            action()

    def count(self, name: str, bootstrap: str, topic: str) -> None:
        """Counts the records of a topic from now on, as a `read_committed` consumer sees them."""
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"soak-{name}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        try:
            partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            while not self._stopped.is_set():
                for message in consumer.consume(5000, 0.5):
                    if message.error() is None:
                        self.consumed[name] += 1
        finally:
            consumer.close()


def postgres_load(load: Load, dsn: str, rate: float) -> None:
    writing = psycopg.connect(dsn, autocommit=True)
    writing.execute("SET synchronous_commit = off")
    purging = psycopg.connect(dsn, autocommit=True)
    purge = f"DELETE FROM outbox WHERE created_at < now() - interval '{KEPT_SECONDS} s'"
    load.start("postgres-writer", lambda: load.write("postgres", rate, lambda: _insert(writing)), writes=True)
    load.start("postgres-purge", lambda: load.every(PURGE_SECONDS, lambda: _purge(purging, purge)), writes=False)


def _insert(connection: psycopg.Connection[Any]) -> None:
    connection.execute(INSERT, (BATCH,))


def _purge(connection: psycopg.Connection[Any], statement: str) -> None:
    connection.execute(statement)


def mongo_load(load: Load, uri: str, database: str, topic: str, rate: float) -> None:
    client = MongoClient[dict[str, Any]](uri)
    outbox = client[database].get_collection("outbox", write_concern=MAJORITY)
    outbox.create_index("created_at")

    def write() -> None:
        now = datetime.now(UTC)
        outbox.insert_many([_document(number, topic, now) for number in range(BATCH)])

    def purge() -> None:
        before = datetime.fromtimestamp(time.time() - KEPT_SECONDS, UTC)
        outbox.delete_many({"created_at": {"$lt": before}})

    load.start("mongo-writer", lambda: load.write("mongo", rate, write), writes=True)
    load.start("mongo-purge", lambda: load.every(PURGE_SECONDS, purge), writes=False)


def _document(number: int, topic: str, at: datetime) -> dict[str, Any]:
    key = f"user-{(time.monotonic_ns() // 1000 + number * 7919) % 5000}"
    payload = {"user": key, "revision": 1, "email": f"{key}@example.com", "note": "x" * 100}
    return {
        "event_id": str(uuid.uuid4()), "event_type": "UserChanged", "entity_type": "user", "entity_id": key,
        "topic": topic, "partition_key": key, "payload": payload, "created_at": at,
    }  # fmt: skip
