"""The topic that projections are measured on: orders placed, paid and shipped, as the connector publishes them.

Three events for each order, of about 200 bytes, interleaved with those of other orders. Each has the amount, so that a
sum over all events shows what is missing or counted twice.
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
"""Events in one Kafka transaction: the connector takes what is available, up to its batch limit."""
STEPS = (("OrderPlaced", "placed"), ("OrderPaid", "paid"), ("OrderShipped", "shipped"))
OPEN_ORDERS = 500
"""An order is paid when so many others were placed after it."""


def orders_in(events: int) -> int:
    return -(-events // len(STEPS))


def expected(events: int, *, once: bool) -> tuple[int, int, int]:
    """The totals of the topic: orders, shipped orders, and amounts, counted `once` per order or per event."""
    steps = list(_steps(events))
    orders = {order for order, _ in steps}
    shipped = sum(step == len(STEPS) - 1 for _, step in steps)
    return len(orders), shipped, sum(map(_amount, orders if once else [order for order, _ in steps]))


def publish(kafka: KafkaBroker, topic: str, events: int) -> int:
    """Fills a new topic; returns the average size of a payload."""
    kafka.create_topic(topic, PARTITIONS)
    producer = Producer(producer_config(KafkaOptions(kafka.bootstrap, topic)))
    producer.init_transactions(60)
    size = 0
    now_ms = int(time.time() * 1000)
    for number, (order, step) in enumerate(_steps(events)):
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


def _steps(events: int) -> Iterator[tuple[int, int]]:
    """Orders and their steps, in the order they are published: one more placed, an older one paid, one shipped."""
    made, turn, orders = 0, 0, orders_in(events)
    while made < events:
        for step in range(len(STEPS)):
            order = turn - step * OPEN_ORDERS
            if 0 <= order < orders and made < events:
                made += 1
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
    position = f"0/{number // 10:08X}:{number % 10}"
    return OutboxEvent(
        str(uuid.uuid4()), kind, "order", name.encode(), orjson.dumps(payload), None, position, time_ms, []
    )
