"""Tests a projection without a broker, on a real database (`SHOP_DB`). Each run uses new orders."""
# ruff: noqa: S101

from __future__ import annotations

import asyncio
import uuid
from decimal import Decimal

import psycopg

from examples.order_summary.app import DATABASE, orders
from tailrace.errors import Reason
from tailrace.projections import ProjectionTester


def row(order: str) -> tuple[object, ...] | None:
    """Returns amount, currency and the number of changes."""
    with psycopg.connect(DATABASE) as connection:
        query = "SELECT amount, currency, changes FROM order_summary.orders WHERE id = %s"
        return connection.execute(query, [order]).fetchone()


def payload(order: str, revision: int, amount: float) -> dict[str, object]:
    return {"order": order, "revision": revision, "amount": amount, "currency": "EUR"}


def test_a_repeated_change_counts_once() -> None:
    order, change = f"o-{uuid.uuid4()}", str(uuid.uuid4())

    async def scenario() -> None:
        async with ProjectionTester(orders) as tester:
            await tester.send("OrderPlaced", payload(order, 1, 10.5), key=order)
            await tester.send("OrderChanged", payload(order, 2, 12.25), key=order, event_id=change)
            await tester.send("OrderChanged", payload(order, 2, 12.25), key=order, event_id=change)
            assert tester.outcomes == {"applied": 2, "duplicate": 1}

    asyncio.run(scenario())
    assert row(order) == (Decimal("12.25"), "EUR", 1)


def test_an_invalid_order_is_dead_lettered_and_blocks_nothing() -> None:
    order = f"o-{uuid.uuid4()}"

    async def scenario() -> None:
        async with ProjectionTester(orders) as tester:
            bad = await tester.send("OrderPlaced", {"order": order, "amount": "a lot"}, key=order)
            await tester.send("OrderPlaced", payload(order, 1, 10), key=order)
            [letter] = tester.dead_letters
            assert letter.event is bad
            assert letter.failure.reason is Reason.SCHEMA_VALIDATION_FAILED

    asyncio.run(scenario())
    assert row(order) == (Decimal(10), "EUR", 0)
