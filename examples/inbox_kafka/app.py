"""Adds up the amounts of each order: a plain confluent-kafka consumer that applies every event once.

The sums are wrong as soon as an event is lost or applied twice. Run it with `python -m examples.inbox_kafka.app`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaException, Message

from tailrace.inbox import Inbox

GROUP = "order-totals"
DATABASE = os.environ.get("SHOP_DB", "postgresql://localhost/shop")
TABLE = "CREATE TABLE IF NOT EXISTS order_totals (id text PRIMARY KEY, events integer NOT NULL, total numeric NOT NULL)"
ADD = """INSERT INTO order_totals AS o VALUES (%s, 1, %s)
ON CONFLICT (id) DO UPDATE SET events = o.events + 1, total = o.total + excluded.total"""

inbox = Inbox()
consumer = Consumer(
    {
        "bootstrap.servers": os.environ.get("KAFKA", "localhost:9092"),
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        # An offset is stored when its event is committed, and stored offsets are sent to Kafka every 5 s. After a kill,
        # the events since then are delivered again; the inbox recognises them.
        "enable.auto.offset.store": False,
        "session.timeout.ms": 6_000,
    }
)


def handle(connection: psycopg.Connection, message: Message) -> None:
    event_id = dict(message.headers() or [])["id"].decode()
    with connection.transaction(), inbox.once(connection, event_id, GROUP) as first:
        if first:
            order = json.loads(message.value() or b"", parse_float=str)  # amounts stay exact
            connection.execute(ADD, [order["order"], order["amount"]])


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with psycopg.connect(DATABASE, autocommit=True) as connection:
        connection.execute(TABLE)
        inbox.create(connection)
        consumer.subscribe(["shop.orders"], on_assign=assigned)
        try:
            while True:
                message = consumer.poll(1.0)
                if message is None:
                    continue
                if error := message.error():
                    raise KafkaException(error)
                # An error of the database ends the process. Whoever restarts it gets the event again.
                handle(connection, message)
                consumer.store_offsets(message)
        finally:
            consumer.close()


def assigned(*_: Any) -> None:  # noqa: ANN401 - consumer and partitions
    print(json.dumps({"event": "reading"}), flush=True)  # noqa: T201 - what examples.run waits for


if __name__ == "__main__":
    main()
