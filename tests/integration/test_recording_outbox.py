"""RecordingOutbox with real connections: it demands a transaction, as Outbox does, and writes nothing."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tailrace.errors import NotInTransaction
from tailrace.testkit.recording import RecordingOutbox

PAYLOAD = {"order": "o-1"}


def test_a_connection_must_be_in_a_transaction(database: str) -> None:
    outbox = RecordingOutbox()
    with psycopg.connect(database, autocommit=True) as connection:
        with pytest.raises(NotInTransaction):
            outbox.add(connection, "OrderPlaced", PAYLOAD, aggregate=("order", "o-1"))
        assert outbox.events == []
        with connection.transaction():
            outbox.add(connection, "OrderPlaced", PAYLOAD, aggregate=("order", "o-1"))
    assert outbox.only("OrderPlaced") == ("OrderPlaced", PAYLOAD)


def test_an_asyncio_connection_must_be_awaited(database: str) -> None:
    outbox = RecordingOutbox()

    async def act() -> None:
        async with await psycopg.AsyncConnection.connect(database) as connection:
            adding = outbox.add(connection, "OrderPlaced", PAYLOAD, aggregate=("order", "o-1"))
            assert outbox.events == []
            receipt = await adding
            assert await receipt is receipt
            assert await outbox.exists(connection, receipt.id)  # type: ignore[misc]
            assert await outbox.slow_down(connection) == 0  # type: ignore[misc]
            assert (await outbox.pressure(connection)).pending_events == 0  # type: ignore[misc]

    asyncio.run(act())
    assert outbox.only("OrderPlaced") == ("OrderPlaced", PAYLOAD)
