"""One row for each order: its current amount and the number of changes."""

from __future__ import annotations

import os

from examples.order_summary.events import OrderChanged, OrderPlaced
from tailrace.projections import Event, PostgresEffects, PostgresStore, Projection, projection_app

TABLES = """CREATE TABLE IF NOT EXISTS orders (
    id text PRIMARY KEY, amount numeric NOT NULL, currency text NOT NULL, changes integer NOT NULL
)"""
DATABASE = os.environ.get("SHOP_DB", "postgresql://localhost/shop")
app = projection_app("order-summary", broker=os.environ.get("KAFKA", "kafka://localhost:9092"))
orders = Projection(app, "shop.orders", store=PostgresStore(DATABASE, schema="order_summary", tables=TABLES))


@orders.on("OrderPlaced", model=OrderPlaced)
async def placed(event: Event, effects: PostgresEffects) -> None:
    order: OrderPlaced = event.data
    effects.upsert("orders", {"id": order.order}, {"amount": order.amount, "currency": order.currency, "changes": 0})


@orders.on("OrderChanged", model=OrderChanged)
async def changed(event: Event, effects: PostgresEffects) -> None:
    order: OrderChanged = event.data
    # Not idempotent by itself: applied twice, it would count twice.
    await effects.execute(
        "UPDATE orders SET amount = %s, currency = %s, changes = changes + 1 WHERE id = %s",
        (order.amount, order.currency, order.order),
    )
