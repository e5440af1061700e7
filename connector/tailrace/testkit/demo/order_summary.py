"""A projection as a user would write it: the current amount of each order, and the events that were applied to it.

    tailrace project tailrace.testkit.demo.order_summary:app

The statement need not be idempotent: it runs once per event, in the transaction that stores the offset. `events` would
show a second run.
"""

from __future__ import annotations

import os
from decimal import Decimal

from pydantic import BaseModel

from tailrace.projections import Event, PostgresEffects, PostgresStore, Projection, projection_app

NAME = os.environ.get("ORDER_SUMMARY_NAME", "order_summary")
BROKER = os.environ.get("ORDER_SUMMARY_BROKER", "kafka://localhost:9092")
TOPIC = os.environ.get("ORDER_SUMMARY_TOPIC", "shop.orders")
DATABASE = os.environ.get("ORDER_SUMMARY_DATABASE", "postgresql://localhost/shop")

SCHEMA = "order_summary"
TABLES = """
CREATE TABLE IF NOT EXISTS order_summary (
    order_id text PRIMARY KEY,
    amount numeric NOT NULL,
    currency text NOT NULL,
    revision integer NOT NULL,
    events text[] NOT NULL
)
"""
APPLY = """
INSERT INTO order_summary AS known (order_id, amount, currency, revision, events)
VALUES (%(order)s, %(amount)s, %(currency)s, %(revision)s, ARRAY[%(event_id)s])
ON CONFLICT (order_id) DO UPDATE SET
    amount = EXCLUDED.amount,
    currency = EXCLUDED.currency,
    revision = EXCLUDED.revision,
    events = known.events || EXCLUDED.events
"""


class Order(BaseModel):
    """The payload of both events."""

    order: str
    revision: int
    amount: Decimal
    currency: str


app = projection_app(NAME, broker=BROKER)
orders = Projection(app, TOPIC, store=PostgresStore(DATABASE, schema=SCHEMA, tables=TABLES))


@orders.on("OrderPlaced", "OrderChanged", model=Order)
async def summarise(event: Event, effects: PostgresEffects) -> None:
    await effects.execute(APPLY, {**event.data.model_dump(), "event_id": event.id})
