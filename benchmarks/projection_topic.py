"""The topic that projections are measured on: orders placed, paid and shipped, as the connector publishes them.

Three events for each order, of about 200 bytes, with those of other orders in between. Each names the amount, so that a
projection which adds up shows what was left out or taken twice.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import orjson
from confluent_kafka import Producer

from tailrace.event import OutboxEvent, Route
from tailrace.kafka.client import KafkaOptions, producer_config
from tailrace.records.plain import plain_record
from tailrace.testkit.stack import KafkaBroker

PARTITIONS = 4
TRANSACTION = 1000
"""Events in one Kafka transaction: the connector takes what is at hand, up to 10,000."""
STEPS = (("OrderPlaced", "placed"), ("OrderPaid", "paid"), ("OrderShipped", "shipped"))
OPEN_ORDERS = 500
"""An order is paid when so many others were placed behind it."""


def orders_in(events: int) -> int:
    return -(-events // len(STEPS))


def expected(events: int, *, once: bool) -> tuple[int, int, int]:
    """What the topic comes to: orders, those of them that are shipped, and their amounts, `once` or with each event."""
    told = list(_told(events))
    orders = {order for order, _ in told}
    shipped = sum(step == len(STEPS) - 1 for _, step in told)
    return len(orders), shipped, sum(map(_amount, orders if once else [order for order, _ in told]))


def publish(kafka: KafkaBroker, topic: str, events: int) -> int:
    """Fills a new topic; the average size of a payload."""
    kafka.create_topic(topic, PARTITIONS)
    producer = Producer(producer_config(KafkaOptions(kafka.bootstrap, topic)))
    producer.init_transactions(60)
    size = 0
    now_ms = int(time.time() * 1000)
    for number, (order, step) in enumerate(_told(events)):
        if number % TRANSACTION == 0:
            if number:
                producer.commit_transaction(60)
            producer.begin_transaction()
        record = plain_record(_event(number, order, step, now_ms + number // 10), Route(topic))
        producer.produce(topic, record.value, record.key, headers=record.headers, timestamp=record.timestamp)
        producer.poll(0)
        size += len(record.value or b"")
    producer.commit_transaction(60)
    return size // events


def _told(events: int) -> Iterator[tuple[int, int]]:
    """Orders and their steps, in the order they are published: one more placed, an older one paid, one shipped."""
    told, turn, orders = 0, 0, orders_in(events)
    while told < events:
        for step in range(len(STEPS)):
            order = turn - step * OPEN_ORDERS
            if 0 <= order < orders and told < events:
                told += 1
                yield order, step
        turn += 1


def _amount(order: int) -> int:
    """In cents."""
    return order % 400 * 125


def _event(number: int, order: int, step: int, time_ms: int) -> OutboxEvent:
    kind, state = STEPS[step]
    name = f"order-{order}"
    payload = {
        "order": name, "customer": f"customer-{order % 977}", "amount": _amount(order), "currency": "EUR",
        "status": state, "revision": step + 1, "express": order % 2 == 0, "note": "x" * 60,
    }  # fmt: skip
    place = f"0/{number // 10:08X}:{number % 10}"
    return OutboxEvent(str(uuid.uuid4()), kind, "order", name.encode(), orjson.dumps(payload), None, place, time_ms, [])
