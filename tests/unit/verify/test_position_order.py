"""Positions as numbers: they sort as commits do."""

from __future__ import annotations

import pytest

from tailrace.verify.position_order import mongo_order, order_of, postgres_order


def test_in_a_postgres_log() -> None:
    texts = ["0/A:t1", "0/A:t2", "0/A:t10", "0/B:1", "0/B:2", "0/B:10", "0/10:1", "1/0:1", "A/0:1", "10/0:1"]
    orders = [postgres_order(text) for text in texts]
    assert orders == sorted(orders, key=lambda order: order or ())
    assert len(set(orders)) == len(texts)


def test_in_a_mongodb_log() -> None:
    texts = ["9.1:1", "9.2:1", "9.2:2", "9.2:10", "9.10:1", "10.1:1"]
    orders = [mongo_order(text) for text in texts]
    assert orders == sorted(orders, key=lambda order: order or ())
    assert len(set(orders)) == len(texts)
    assert mongo_order("9.2:00112233aabbccdd") == mongo_order("9.2:1234567890123456"), "there before: no order"
    assert (mongo_order("9.2:00112233aabbccdd") or ()) < (mongo_order("9.2:1") or ())


@pytest.mark.parametrize("text", ["", "x", "0/1", "0/1:", "0/1:t", "9.1:1", "0/x:1", "0/1/2:1", "orders[0]@7"])
def test_what_is_none_in_postgres(text: str) -> None:
    assert postgres_order(text) is None


@pytest.mark.parametrize("text", ["", "x", "9.1", "9.1:", "0/1:1", "9.1.1:1"])
def test_what_is_none_in_mongodb(text: str) -> None:
    assert mongo_order(text) is None


def test_by_database() -> None:
    assert (order_of("postgres"), order_of("mongo")) == (postgres_order, mongo_order)
