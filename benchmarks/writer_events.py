"""What the benchmark of the outbox writer writes, and how two ways are compared: shared by its parts."""

from __future__ import annotations

import json
import statistics
import sys
import uuid
from datetime import UTC, datetime
from typing import Any

import psycopg
import sqlalchemy

EVENTS = 100
"""Events per transaction."""

TABLE = """
CREATE TABLE outbox (
    id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
    type varchar(255) NOT NULL, payload jsonb, created_at timestamptz NOT NULL DEFAULT now()
)"""
COLUMNS = "id, aggregatetype, aggregateid, type, payload, created_at"
SCHEMA = {
    "type": "object",
    "required": ["order_id", "customer", "total_cents"],
    "properties": {
        "order_id": {"type": "string"},
        "customer": {"type": "string"},
        "total_cents": {"type": "integer", "minimum": 0},
        "lines": {"type": "array", "items": {"type": "object"}},
    },
}
PAYLOAD = {
    "order_id": "order-17", "customer": "ann@example.org", "total_cents": 1250, "currency": "EUR",
    "lines": [{"sku": "A-1", "count": 2, "cents": 500}, {"sku": "B-7", "count": 1, "cents": 250}],
}  # fmt: skip
ORDER = ("order", "order-17")
PLACED = "OrderPlaced"


def compared(driver: str, bare: list[float], own: list[float]) -> dict[str, Any]:
    """Compares the lower quartiles, in microseconds."""
    _say(f"{driver}: measured")
    insert, add = (statistics.quantiles(times, n=4)[0] * 1e6 for times in (bare, own))
    return {"driver": driver, "insert_us": round(insert, 1), "add_us": round(add, 1), "ratio": round(add / insert, 3)}


def document() -> dict[str, Any]:
    """Returns the event as a service would write it in the layout `document`."""
    return {
        "event_id": str(uuid.uuid4()), "event_type": PLACED, "entity_type": ORDER[0], "entity_id": ORDER[1],
        "partition_key": ORDER[1], "topic": "orders", "payload": PAYLOAD, "status": "pending",
        "retry_count": 0, "max_retries": 5, "created_at": datetime.now(UTC), "content_type": "application/json",
    }  # fmt: skip


def sqlalchemy_url(dsn: str) -> sqlalchemy.URL:
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    return sqlalchemy.URL.create(
        "postgresql+psycopg", str(given["user"]), str(given.get("password") or ""), str(given["host"]),
        int(str(given["port"])), str(given["dbname"]),
    )  # fmt: skip


def sqlalchemy_insert() -> sqlalchemy.TextClause:
    return sqlalchemy.text(
        f"INSERT INTO outbox ({COLUMNS}) VALUES (:id, :aggregate, :key, :type, CAST(:payload AS jsonb), :at)"
    )


def sqlalchemy_values() -> dict[str, Any]:
    return {
        "id": uuid.uuid4(), "aggregate": ORDER[0], "key": ORDER[1], "type": PLACED,
        "payload": json.dumps(PAYLOAD), "at": datetime.now(UTC),
    }  # fmt: skip


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
