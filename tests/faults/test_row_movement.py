"""An UPDATE of a partition key moves the row, which Postgres logs as a DELETE and an INSERT: it is not a new event."""

from __future__ import annotations

import json
import uuid

import psycopg
import pytest

from helpers import recovery as recovering
from helpers.command import Tailrace
from helpers.shop import Shop
from helpers.tiers import mostly_slow
from tailrace import failpoints
from tailrace.testkit.stack import wait_until

PAYLOAD = json.dumps({"order": "o", "revision": 1, "amount": 1, "currency": "EUR"})
PARTITIONED = """
DROP TABLE outbox;
CREATE TABLE outbox (
    id uuid, aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload jsonb,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(), processed bool NOT NULL DEFAULT false{key}
) PARTITION BY LIST (processed);
CREATE TABLE outbox_new PARTITION OF outbox FOR VALUES IN (false);
CREATE TABLE outbox_done PARTITION OF outbox FOR VALUES IN (true);
"""
KEY = ", PRIMARY KEY (id, processed)"


@pytest.fixture(params=mostly_slow(["16", "18"], ["16"]))
def either(request: pytest.FixtureRequest) -> Shop:
    shop: Shop = request.getfixturevalue("shop" if request.param == "16" else "shop18")
    return shop


def partition(shop: Shop, key: str = KEY) -> None:
    shop.execute(PARTITIONED.format(key=key))
    shop.configure(source={"order_by": ["created_at", "id", "processed"]})


def insert(connection: psycopg.Connection, count: int) -> list[str]:
    events = [str(uuid.uuid4()) for _ in range(count)]
    connection.cursor().executemany(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
        "VALUES (%s, 'order', 'k', 'OrderPlaced', %s)",
        [(event, PAYLOAD) for event in events],
    )
    return events


def once(shop: Shop, events: list[str]) -> None:
    """Waits for the events; asserts that they are published in this order and nothing else is."""
    connector = shop.connectors[-1]
    wait_until(lambda: set(events) <= {seen.id for seen in shop.published()} or not connector.running, 60)
    assert connector.running, connector.log
    assert [seen.id for seen in shop.published()] == events


def test_moved_rows_are_published_once(either: Shop) -> None:
    """Moved in a separate transaction, in that of the insert, in a large one that is killed half-way; deleted."""
    shop = either
    partition(shop)
    shop.configure(source={"on_change": "halt", "start": "beginning"}, limits={"batch_records": 10})
    with psycopg.connect(shop.dsn) as connection:
        events = insert(connection, 3)
        connection.commit()
        connector = shop.start()
        events += insert(connection, 2)
        connection.commit()
        connection.execute("UPDATE outbox SET processed = true")
        connection.commit()
        events += insert(connection, 1)
        connection.execute("UPDATE outbox SET processed = NOT processed")
        connection.commit()
        once(shop, events)
        connection.execute("DELETE FROM outbox WHERE processed")
        connection.commit()
        assert connector.stop() == 0
        for _ in range(2):
            events += insert(connection, 25)
            connection.execute("UPDATE outbox SET processed = true WHERE NOT processed")
        events += insert(connection, 25)
        connection.commit()
        connection.execute("UPDATE outbox SET processed = NOT processed")
        connection.execute("DELETE FROM outbox WHERE processed")
        connection.commit()
    for _ in range(2):
        shop.start(kill=f"{failpoints.AFTER_COMMIT}:2", wait=False).ended()
    connector = shop.start()
    with psycopg.connect(shop.dsn) as connection:
        events += insert(connection, 1)
    once(shop, events)
    assert connector.running


@pytest.mark.slow
def test_rows_that_move_before_the_first_read_is_complete(shop: Shop) -> None:
    """Killed in between, some are read and some are not, and the log has all as moved: a recovery decides by Kafka."""
    partition(shop)
    shop.configure(source={"start": "beginning"}, limits={"batch_records": 10})
    with psycopg.connect(shop.dsn) as connection:
        events = insert(connection, 60)
    assert shop.start(kill=f"{failpoints.TABLE_ROWS_READ}:3").ended() == -9
    seen = len(shop.published())
    assert 0 < seen < 60
    shop.execute("UPDATE outbox SET processed = true")
    shop.start(wait=False).failed("TableRewritten")
    assert len(shop.published()) == seen
    shop.start(wait=False).failed("TableRewritten")
    planned = recovering.plan(shop)
    assert (planned["case"]["code"], planned["missed"], planned["undecided"]) == ("TableRewritten", 60 - seen, 0), (
        planned
    )
    assert recovering.apply(shop)["published"] == 60 - seen
    shop.start()
    shop.execute("UPDATE outbox SET processed = false")
    with psycopg.connect(shop.dsn) as connection:
        events += insert(connection, 1)
    once(shop, events)


def test_a_publication_without_deletes_is_refused(shop: Shop, tailrace: Tailrace) -> None:
    """Both a start and `check` refuse it; the remedy of `check` is run unchanged."""
    partition(shop)
    shop.execute(
        f"CREATE PUBLICATION {shop.slot} FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)"
    )
    shop.start(wait=False).failed("PublicationBroken")
    found = {each["name"]: each for each in tailrace("check", shop.file, code=1)["checks"]}["publication"]
    assert (found["state"], "does not publish deletes" in found["found"]) == ("FAIL", True), found
    shop.execute(found["remedy"])
    found = {each["name"]: each for each in tailrace("check", shop.file)["checks"]}["publication"]
    assert (found["state"], "and deletes" in found["found"]) == ("OK", True), found
    shop.start()


def test_partitions_without_a_replica_identity_are_refused(shop: Shop, tailrace: Tailrace) -> None:
    """Publishing their deletes would make the service's own DELETE fail, so nothing is created."""
    partition(shop, key="")
    connector = shop.start(wait=False)
    connector.failed("PublicationBroken")
    assert "replica identity" in connector.log
    assert shop.execute("SELECT 1 FROM pg_publication") == []
    found = {each["name"]: each for each in tailrace("check", shop.file, code=1)["checks"]}["publication"]
    assert (found["state"], "replica identity" in found["found"]) == ("FAIL", True), found
    for table in ("outbox_new", "outbox_done"):
        shop.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    shop.start()
    with psycopg.connect(shop.dsn) as connection:
        events = insert(connection, 2)
        connection.commit()
        connection.execute("UPDATE outbox SET processed = true")
        events += insert(connection, 1)
    once(shop, events)
