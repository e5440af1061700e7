"""A shop whose outbox is partitioned by key: its rows, and changes to its tables that the connector does not make."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable

from helpers.shop import Connector, Shop
from tailrace.testkit.stack import wait_until

PAYLOAD = '{"order": "o", "revision": 1, "amount": 1, "currency": "EUR"}'
PARTITIONED = """
DROP TABLE outbox;
CREATE TABLE outbox (
    id uuid, aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload jsonb,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (id, aggregateid)
) PARTITION BY LIST (aggregateid);
CREATE TABLE outbox_k PARTITION OF outbox FOR VALUES IN ('k');
CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT;
"""


def partition(shop: Shop) -> None:
    shop.execute(PARTITIONED)
    shop.configure(source={"order_by": ["created_at", "id", "aggregateid"]})


def insert(shop: Shop, table: str = "outbox", key: str = "k") -> str:
    event = str(uuid.uuid4())
    shop.execute(
        f"INSERT INTO {table} (id, aggregatetype, aggregateid, type, payload) VALUES (%s, 'order', %s, %s, %s)",
        event, key, "OrderPlaced", PAYLOAD,
    )  # fmt: skip
    return event


def published(shop: Shop, events: list[str], timeout: float = 60) -> None:
    """Waits until they are on Kafka; each exactly once, and nothing else."""
    wait_until(lambda: set(events) <= {seen.id for seen in shop.published()}, timeout, what="the events")
    assert sorted(seen.id for seen in shop.published()) == sorted(events)


def paused(connector: Connector, *changes: Callable[[], object]) -> list[object]:
    """Makes all the changes between two checks of the catalog."""
    connector.process.send_signal(signal.SIGSTOP)
    done = [change() for change in changes]
    connector.process.send_signal(signal.SIGCONT)
    return done


def sql(shop: Shop, statement: str) -> Callable[[], object]:
    return lambda: shop.execute(statement)


def looked(shop: Shop, connector: Connector) -> None:
    """Waits until a check of the catalog has found everything correct."""
    here = int(shop.execute("SELECT pg_current_xact_id()::text::bigint")[0][0])

    def found() -> bool:
        shop.execute("SELECT pg_current_xact_id()")
        return shop.positions()[-1].watched > here or not connector.running

    wait_until(found, 60, what="a look")
    assert connector.running, connector.log
