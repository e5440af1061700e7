"""The same summary of orders, written by hand with confluent-kafka and psycopg, without the kit.

It does what a careful engineer would write for this job: records are consumed in batches, and each batch is one
transaction with the ids of its events, its rows and its next offsets. It has no retries, dead letters, versions,
pruning, metrics, nor a second try of a failed batch without the event that failed.
"""

from __future__ import annotations

from typing import Any

import orjson
import psycopg
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from benchmarks.projection_task import Stopwatch, task

TASK = task()
BATCH = 500
HANDLED = {b"OrderPlaced", b"OrderPaid", b"OrderShipped"}
TABLES = f"""
CREATE SCHEMA {TASK.name};
SET search_path TO {TASK.name};
CREATE TABLE order_summary (
    order_id text PRIMARY KEY, customer text NOT NULL, state text NOT NULL, amount bigint NOT NULL,
    currency text NOT NULL, revision integer NOT NULL, express boolean NOT NULL
);
CREATE TABLE processed_events (event_id text PRIMARY KEY, processed_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE offsets (topic text, partition integer, next_offset bigint NOT NULL, PRIMARY KEY (topic, partition));
"""
MARK = """
    INSERT INTO processed_events (event_id) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING RETURNING event_id
"""
UPSERT = """
    INSERT INTO order_summary
    SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[], %s::integer[], %s::boolean[])
    ON CONFLICT (order_id) DO UPDATE SET customer = EXCLUDED.customer, state = EXCLUDED.state,
        amount = EXCLUDED.amount, currency = EXCLUDED.currency, revision = EXCLUDED.revision, express = EXCLUDED.express
"""
ADVANCE = """
    INSERT INTO offsets SELECT * FROM unnest(%s::text[], %s::integer[], %s::bigint[])
    ON CONFLICT (topic, partition) DO UPDATE SET next_offset = EXCLUDED.next_offset
"""


def main() -> None:
    watch = Stopwatch(TASK.file)
    with psycopg.connect(TASK.store, autocommit=True) as connection:
        connection.execute(TABLES)
        consumer = Consumer(
            {
                "bootstrap.servers": TASK.bootstrap,
                "group.id": TASK.name,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([TASK.topic], on_assign=lambda _, given: consumer.assign(stored(connection, given)))
        applied = 0
        while True:
            messages = consumer.consume(BATCH, timeout=0.05)
            if not messages:
                continue
            if not watch.running:
                watch.start()
            applied += apply(connection, messages)
            if applied == TASK.events:
                watch.stop()


def stored(connection: psycopg.Connection[Any], partitions: list[TopicPartition]) -> list[TopicPartition]:
    """Returns the partitions with the offsets of the database, which are the truth."""
    known = {(topic, number): offset for topic, number, offset in connection.execute("SELECT * FROM offsets")}
    for each in partitions:
        each.offset = known.get((each.topic, each.partition), each.offset)
    return partitions


def apply(connection: psycopg.Connection[Any], messages: list[Message]) -> int:
    """Applies a batch in one transaction; returns the number of new events."""
    events: dict[str, Message] = {}
    offsets: dict[tuple[str | None, int | None], int] = {}
    for message in messages:
        if (error := message.error()) is not None:
            raise KafkaException(error)
        headers: dict[str, Any] = dict(message.headers() or ())
        offsets[message.topic(), message.partition()] = (message.offset() or 0) + 1
        if headers["type"] in HANDLED:
            events[headers["id"].decode()] = message
    with connection.transaction():
        new = {row[0] for row in connection.execute(MARK, [sorted(events)])}
        rows = {}
        for event_id, message in events.items():
            if event_id in new:
                data = orjson.loads(message.value() or b"")
                rows[data["order"]] = (
                    data["order"], data["customer"], data["status"], data["amount"], data["currency"],
                    data["revision"], data["express"],
                )  # fmt: skip
        if rows:
            columns = zip(*(rows[order] for order in sorted(rows)), strict=True)
            connection.execute(UPSERT, [list(column) for column in columns])
        topics, partitions = zip(*offsets, strict=True)
        connection.execute(ADVANCE, [list(topics), list(partitions), list(offsets.values())])
    return len(new)


if __name__ == "__main__":
    main()
