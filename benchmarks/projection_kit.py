"""The projections that are measured, run by `tailrace project`: a summary of orders, as users would write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Message

from benchmarks.projection_task import Stopwatch, task
from tailrace.projections import Event, MongoEffects, MongoStore, PostgresEffects, PostgresStore, Projection
from tailrace.projections.core.apply import BatchResult
from tailrace.projections.core.partition_worker import PartitionWorker
from tailrace.projections.core.store import EventOutcome, Partition, ProjectionStore
from tailrace.projections.faust.app import projection_app

TASK = task()
TABLES = """
CREATE TABLE IF NOT EXISTS order_summary (
    order_id text PRIMARY KEY, customer text NOT NULL, state text NOT NULL, amount bigint NOT NULL,
    currency text NOT NULL, revision integer NOT NULL, express boolean NOT NULL
);
CREATE TABLE IF NOT EXISTS order_totals (
    order_id text PRIMARY KEY, state text NOT NULL, amount bigint NOT NULL, events integer NOT NULL
);
"""
COUNT = """
    INSERT INTO order_totals VALUES (%s, %s, %s, 1) ON CONFLICT (order_id) DO UPDATE
    SET state = EXCLUDED.state, amount = order_totals.amount + EXCLUDED.amount, events = order_totals.events + 1
"""


class Timed(Projection):
    """Starts the stopwatch with the first record and reads it at each commit."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.watch = Stopwatch(TASK.file)
        super().__init__(*args, **settings)

    def receive(self, partition: Partition, messages: Sequence[Message]) -> None:
        if not self.watch.running:
            self.watch.start()
        super().receive(partition, messages)

    def committed(self, worker: PartitionWorker, applied: BatchResult) -> None:
        super().committed(worker, applied)
        if self.metrics.events[TASK.topic, EventOutcome.APPLIED.value] == TASK.events:
            self.watch.stop()


app = projection_app(TASK.name, broker=f"kafka://{TASK.bootstrap}")
store: ProjectionStore[Any] = (
    MongoStore(TASK.store, TASK.name, collections={"order_summary": []})
    if TASK.way == "mongo"
    else PostgresStore(TASK.store, schema=TASK.name, tables=TABLES)
)
one_by_one: dict[str, Any] = {"events": 1, "within": 0}
orders = Timed(app, TASK.topic, store=store, **(one_by_one if TASK.way == "single" else {}))


async def summarise(event: Event, effects: PostgresEffects | MongoEffects) -> None:
    data = event.data
    effects.upsert(
        "order_summary",
        {"_id" if TASK.way == "mongo" else "order_id": data["order"]},
        {
            "customer": data["customer"],
            "state": data["status"],
            "amount": data["amount"],
            "currency": data["currency"],
            "revision": data["revision"],
            "express": data["express"],
        },
    )


async def add_up(event: Event, effects: PostgresEffects) -> None:
    data = event.data
    await effects.execute(COUNT, (data["order"], data["status"], data["amount"]))


orders.on("OrderPlaced", "OrderPaid", "OrderShipped")(add_up if TASK.way == "execute" else summarise)
