"""Part of `make bench`: what `outbox.add` costs next to the bare INSERT that a service would write by hand.

Both write the same columns with the same driver and connection, in turns, one statement per event and 100 events per
transaction. The bare statement includes what it cannot do without: a new id and the payload as JSON. Each call is
timed; the lower quartiles are compared, because other work on the machine only adds time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import sqlalchemy
from psycopg.types.json import Jsonb
from pymongo import MongoClient
from sqlalchemy.orm import Session

from tailrace.outbox import Outbox
from tailrace.outbox.mongosh import collection_commands
from tailrace.testkit.stack import MongoServer, PostgresServer

EVENTS = 100
"""Events per transaction."""
ROUNDS = 40
LIMIT = 1.2
RESULTS = Path(__file__).parent / "results" / "outbox_writer.json"

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

Write = Callable[[], Any]
"""Writes one event; the asyncio driver's result is awaited."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1, help="share of the rounds, for a quick run (not saved)")
    scale = parser.parse_args().scale
    rounds = max(3, int(ROUNDS * scale))
    with tempfile.TemporaryDirectory() as folder, PostgresServer("16") as postgres, MongoServer() as mongo:
        Path(folder, f"{PLACED}.json").write_text(json.dumps(SCHEMA))
        dsn = postgres.create_database("writer")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TABLE)
        plain, validating = Outbox(table="outbox"), Outbox(table="outbox", schemas=folder)
        rows = [
            *_psycopg(dsn, plain, validating, rounds),
            _sqlalchemy(dsn, plain, rounds),
            asyncio.run(_asyncpg(dsn, plain, rounds)),
            _pymongo(mongo, rounds),
        ]
    print(f"\n{'':28}{'INSERT µs':>12}{'add µs':>10}{'ratio':>8}{'limit':>8}")
    for row in rows:
        print(f"{row['driver']:28}{row['insert_us']:>12.0f}{row['add_us']:>10.0f}{row['ratio']:>8.2f}{LIMIT:>8.2f}")
    if scale == 1:
        result = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "calls": rounds * EVENTS, "writer": rows}
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")


def _row(driver: str, bare: list[float], own: list[float]) -> dict[str, Any]:
    """Compares the lower quartiles, in microseconds."""
    _say(f"{driver}: measured")
    insert, add = (statistics.quantiles(times, n=4)[0] * 1e6 for times in (bare, own))
    return {"driver": driver, "insert_us": round(insert, 1), "add_us": round(add, 1), "ratio": round(add / insert, 3)}


def _in_turns(ways: list[Write], rounds: int, commit: Callable[[], Any]) -> list[list[float]]:
    """Returns the times of all calls of each way; the first round is not counted."""
    times: list[list[float]] = [[] for _ in ways]
    for number in range(rounds + 1):
        for _ in range(EVENTS):
            for way, found in zip(ways, times, strict=True):
                began = time.perf_counter()
                way()
                if number:
                    found.append(time.perf_counter() - began)
        commit()
    return times


def _psycopg(dsn: str, plain: Outbox, validating: Outbox, rounds: int) -> list[dict[str, Any]]:
    with psycopg.connect(dsn) as connection:
        insert = f"INSERT INTO outbox ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)"

        def bare() -> None:
            values = (uuid.uuid4(), *ORDER, PLACED, Jsonb(PAYLOAD), datetime.now(UTC))
            connection.execute(insert, values)

        def add() -> None:
            plain.add(connection, PLACED, PAYLOAD, aggregate=ORDER)

        def add_valid() -> None:
            validating.add(connection, PLACED, PAYLOAD, aggregate=ORDER)

        times = _in_turns([bare, add, add_valid], rounds, connection.commit)
    return [_row("psycopg", times[0], times[1]), _row("psycopg, with a schema", times[0], times[2])]


def _sqlalchemy(dsn: str, outbox: Outbox, rounds: int) -> dict[str, Any]:
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    url = sqlalchemy.URL.create(
        "postgresql+psycopg", str(given["user"]), str(given.get("password") or ""), str(given["host"]),
        int(str(given["port"])), str(given["dbname"]),
    )  # fmt: skip
    insert = sqlalchemy.text(
        f"INSERT INTO outbox ({COLUMNS}) VALUES (:id, :aggregate, :key, :type, CAST(:payload AS jsonb), :at)"
    )
    with Session(sqlalchemy.create_engine(url)) as session:

        def bare() -> None:
            session.execute(
                insert,
                {
                    "id": uuid.uuid4(), "aggregate": ORDER[0], "key": ORDER[1], "type": PLACED,
                    "payload": json.dumps(PAYLOAD), "at": datetime.now(UTC),
                },
            )  # fmt: skip

        def add() -> None:
            outbox.add(session, PLACED, PAYLOAD, aggregate=ORDER)

        return _row("SQLAlchemy", *_in_turns([bare, add], rounds, session.commit))


async def _asyncpg(dsn: str, outbox: Outbox, rounds: int) -> dict[str, Any]:
    given: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(dsn)
    connection = await asyncpg.connect(
        host=given["host"], port=given["port"], user=given["user"], password=given.get("password"),
        database=given["dbname"],
    )  # fmt: skip
    insert = f"INSERT INTO outbox ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6)"

    def bare() -> Awaitable[Any]:
        values = (uuid.uuid4(), *ORDER, PLACED, json.dumps(PAYLOAD), datetime.now(UTC))
        found: Awaitable[Any] = connection.execute(insert, *values)
        return found

    def add() -> Awaitable[Any]:
        return outbox.add(connection, PLACED, PAYLOAD, aggregate=ORDER)

    times: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        async with connection.transaction():
            for _ in range(EVENTS):
                for way, found in zip((bare, add), times, strict=True):
                    began = time.perf_counter()
                    await way()
                    if number:
                        found.append(time.perf_counter() - began)
    await connection.close()
    return _row("asyncpg", *times)


def _pymongo(mongo: MongoServer, rounds: int) -> dict[str, Any]:
    client: MongoClient[dict[str, Any]] = mongo.client()
    with client, client.start_session() as session:
        for command in collection_commands("writer", "outbox"):
            client["writer"].command(command.body)
        collection = client["writer"]["outbox"]
        outbox = Outbox(layout="document", table="writer.outbox", topic="orders")

        def bare() -> None:
            document = {
                "event_id": str(uuid.uuid4()), "event_type": PLACED, "entity_type": ORDER[0], "entity_id": ORDER[1],
                "partition_key": ORDER[1], "topic": "orders", "payload": PAYLOAD, "status": "pending",
                "retry_count": 0, "max_retries": 5, "created_at": datetime.now(UTC), "content_type": "application/json",
            }  # fmt: skip
            collection.insert_one(document, session=session)

        def add() -> None:
            outbox.add(session, PLACED, PAYLOAD, aggregate=ORDER)

        def commit() -> None:
            session.commit_transaction()
            session.start_transaction()

        session.start_transaction()
        times = _in_turns([bare, add], rounds, commit)
        session.abort_transaction()
        return _row("pymongo", *times)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
