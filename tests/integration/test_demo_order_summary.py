"""The demo's projection, on a real Postgres."""

from __future__ import annotations

import importlib
import sys
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from helpers.store_scenarios import in_loop
from tailrace.projections import Projection, ProjectionTester

MODULE = "tailrace.testkit.demo.order_summary"


@pytest.fixture
def orders(database: str, monkeypatch: pytest.MonkeyPatch) -> Projection:
    """Imports the module again, because it reads its settings from the environment at import."""
    monkeypatch.setenv("ORDER_SUMMARY_DATABASE", database)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    found = importlib.import_module(MODULE).orders
    assert isinstance(found, Projection)
    return found


def order(amount: float, revision: int) -> dict[str, Any]:
    return {"order": "o-1", "revision": revision, "amount": amount, "currency": "EUR"}


@in_loop
async def test_each_event_stores_its_amount_and_its_id(orders: Projection, database: str) -> None:
    async with ProjectionTester(orders) as tester:
        placed = await tester.send("OrderPlaced", order(9.5, 1), key="o-1")
        changed = await tester.send("OrderChanged", order(12.25, 2), key="o-1")
        await tester.send("OrderPlaced", order(9.5, 1), key="o-1", event_id=placed.id)
    assert tester.outcomes["duplicate"] == 1
    assert tester.dead_letters == []
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT * FROM order_summary.order_summary").fetchall()
    assert rows == [("o-1", Decimal("12.25"), "EUR", 2, [placed.id, changed.id])]


@in_loop
async def test_an_invalid_order_is_dead_lettered(orders: Projection) -> None:
    async with ProjectionTester(orders) as tester:
        bad = await tester.send("OrderPlaced", {"order": "o-1", "amount": "a lot"}, key="o-1")
    assert [letter.event.id for letter in tester.dead_letters] == [bad.id]
