"""The asyncio drivers of `benchmarks.outbox_writer`: psycopg, SQLAlchemy, asyncpg and pymongo."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import asyncpg
import psycopg
from psycopg.types.json import Jsonb
from pymongo import AsyncMongoClient
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from benchmarks.writer_events import (
    COLUMNS,
    EVENTS,
    ORDER,
    PAYLOAD,
    PLACED,
    compared,
    document,
    sqlalchemy_insert,
    sqlalchemy_url,
    sqlalchemy_values,
)  # fmt: skip
from tailrace.outbox import Outbox

Write = Callable[[], Awaitable[Any]]
"""Writes one event."""


async def async_rows(dsn: str, uri: str, outbox: Outbox, rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each driver. `uri` is that of MongoDB; its collection exists."""
    return [
        await _psycopg(dsn, outbox, rounds),
        await _sqlalchemy(dsn, outbox, rounds),
        await _asyncpg(dsn, outbox, rounds),
        await _pymongo(uri, rounds),
    ]


async def _in_turns(ways: list[Write], rounds: int, commit: Write) -> list[list[float]]:
    """Returns the times of all calls of each way; the first round is not counted."""
    times: list[list[float]] = [[] for _ in ways]
    for number in range(rounds + 1):
        for _ in range(EVENTS):
            for way, found in zip(ways, times, strict=True):
                began = time.perf_counter()
                await way()
                if number:
                    found.append(time.perf_counter() - began)
        await commit()
    return times


def _added(outbox: Outbox, connection: object) -> Write:
    def add() -> Awaitable[Any]:
        return outbox.add(connection, PLACED, PAYLOAD, aggregate=ORDER)

    return add


async def _psycopg(dsn: str, outbox: Outbox, rounds: int) -> dict[str, Any]:
    insert = f"INSERT INTO outbox ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)"
    async with await psycopg.AsyncConnection.connect(dsn) as connection:

        async def bare() -> None:
            await connection.execute(insert, (uuid.uuid4(), *ORDER, PLACED, Jsonb(PAYLOAD), datetime.now(UTC)))

        times = await _in_turns([bare, _added(outbox, connection)], rounds, connection.commit)
    return compared("psycopg, asyncio", *times)


async def _sqlalchemy(dsn: str, outbox: Outbox, rounds: int) -> dict[str, Any]:
    insert = sqlalchemy_insert()
    engine = create_async_engine(sqlalchemy_url(dsn))
    async with AsyncSession(engine) as session:

        async def bare() -> None:
            await session.execute(insert, sqlalchemy_values())

        times = await _in_turns([bare, _added(outbox, session)], rounds, session.commit)
    await engine.dispose()
    return compared("SQLAlchemy, asyncio", *times)


async def _asyncpg(dsn: str, outbox: Outbox, rounds: int) -> dict[str, Any]:
    given: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(dsn)
    connection = await asyncpg.connect(
        host=given["host"], port=given["port"], user=given["user"], password=given.get("password"),
        database=given["dbname"],
    )  # fmt: skip
    insert = f"INSERT INTO outbox ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6)"
    transaction = connection.transaction()
    await transaction.start()

    async def bare() -> None:
        await connection.execute(insert, uuid.uuid4(), *ORDER, PLACED, json.dumps(PAYLOAD), datetime.now(UTC))

    async def commit() -> None:
        nonlocal transaction
        await transaction.commit()
        transaction = connection.transaction()
        await transaction.start()

    times = await _in_turns([bare, _added(outbox, connection)], rounds, commit)
    await transaction.rollback()
    await connection.close()
    return compared("asyncpg", *times)


async def _pymongo(uri: str, rounds: int) -> dict[str, Any]:
    outbox = Outbox(layout="document", table="writer.outbox", topic="orders")
    async with AsyncMongoClient[dict[str, Any]](uri) as client, client.start_session() as session:
        collection = client["writer"]["outbox"]

        async def bare() -> None:
            await collection.insert_one(document(), session=session)

        async def commit() -> None:
            await session.commit_transaction()
            await session.start_transaction()

        await session.start_transaction()
        times = await _in_turns([bare, _added(outbox, session)], rounds, commit)
        await session.abort_transaction()
    return compared("pymongo, asyncio", *times)
