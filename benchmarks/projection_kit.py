"""The projections and agents that are measured, run by `tailrace project`: a summary of orders, as users write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Message

from benchmarks.projection_task import Stopwatch, task
from tailrace.projections import Event, MongoEffects, MongoStore, PostgresEffects, PostgresStore, Projection
from tailrace.projections.core.apply import BatchResult
from tailrace.projections.core.partition_worker import PartitionWorker
from tailrace.projections.core.settings import Settings
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


def timed(projection: Projection) -> None:
    """Starts the stopwatch with the first record and reads it at each commit."""
    watch = Stopwatch(TASK.file)
    receive, committed = projection.receive, projection.committed

    def timed_receive(partition: Partition, messages: Sequence[Message]) -> None:
        if not watch.running:
            watch.start()
        receive(partition, messages)

    def timed_committed(worker: PartitionWorker, result: BatchResult) -> None:
        committed(worker, result)
        if projection.metrics.events[TASK.topic, EventOutcome.APPLIED.value] == TASK.events:
            watch.stop()

    projection.receive = timed_receive  # type: ignore[method-assign]
    projection.committed = timed_committed  # type: ignore[method-assign]


app = projection_app(TASK.name, broker=f"kafka://{TASK.bootstrap}")
store: ProjectionStore[Any] = (
    MongoStore(TASK.store, TASK.name, collections={"order_summary": []})
    if TASK.way == "mongo"
    else PostgresStore(TASK.store, schema=TASK.name, tables=TABLES)
)


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


async def apply_each(stream: Any) -> None:
    async for event in stream:
        async with event.once() as effects:
            await summarise(event, effects)


async def apply_batches(stream: Any) -> None:
    async for batch in stream.take(Settings.events, within=Settings.within):
        async with batch.once() as effects:
            for event in batch:
                await summarise(event, effects)


if TASK.way.startswith("agent"):
    channel = app.events(TASK.topic, store=store)
    timed(channel.projection)
    declare = app.agent(channel, concurrency=4 if TASK.way == "agent_tasks" else 1)
    declare(apply_batches if TASK.way == "agent_batches" else apply_each)
else:
    one_by_one: dict[str, Any] = {"events": 1, "within": 0}
    orders = Projection(app, TASK.topic, store=store, **(one_by_one if TASK.way == "single" else {}))
    timed(orders)
    orders.on("OrderPlaced", "OrderPaid", "OrderShipped")(add_up if TASK.way == "execute" else summarise)
