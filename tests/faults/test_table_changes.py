"""Rows 25, 26, 30 and 32 of the fault matrix, and what else can be done to an outbox table while it is tailed."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from helpers.shop import Shop, close_shop, open_shop
from tailrace.testkit.oracle import WriteOutcome, WrittenEvent
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until
from tailrace.testkit.topic_reader import header, read_all


class Till:
    """Writes single outbox rows by hand and keeps the ledger for them, whatever the table looks like by now."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._written = shop.writer().written
        self._seq = 0

    def sell(self, *, table: str = "outbox", key_column: str = "aggregateid", **extra: str) -> str:
        """One row in a transaction of its own; its id."""
        entry, statement, values = self.prepare(table, key_column, extra)
        self._shop.execute(statement, *values)
        self.committed(entry)
        return entry.id

    def prepare(self, table: str, key_column: str, extra: dict[str, str]) -> tuple[WrittenEvent, str, list[str]]:
        names = ["id", "aggregatetype", key_column, "type", "payload", *extra]
        event = str(uuid.uuid4())
        payload = json.dumps({"order": "k", "revision": 1, "amount": 1, "currency": "EUR"})
        places = ", ".join(["%s"] * len(names))
        statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})"
        values = [event, "order", "k", "OrderPlaced", payload, *extra.values()]
        return WrittenEvent(event, "k", 0, True, WriteOutcome.COMMITTED), statement, values

    def committed(self, entry: WrittenEvent) -> None:
        """Call it in commit order: that is the order consumers must see."""
        self._seq += 1
        self._written.append(entry._replace(seq=self._seq))


def lsn(shop: Shop) -> int:
    return int(shop.execute("SELECT pg_current_wal_lsn() - '0/0'")[0][0])


def right(shop: Shop) -> None:
    verdict = shop.caught_up()
    assert verdict.ok, verdict


def test_columns_come_and_go(shop: Shop) -> None:
    """Row 25: an added column becomes a header, a dropped one is no longer sent, within one transaction, too."""
    till = Till(shop)
    shop.start()
    plain = till.sell(traceparent="t1")
    shop.execute("ALTER TABLE outbox ADD COLUMN tenant text")
    added = till.sell(traceparent="t2", tenant="acme")
    shop.execute("ALTER TABLE outbox DROP COLUMN traceparent")
    dropped = till.sell(tenant="bcme")
    right(shop)
    seen = {header(message, "id"): message for message in read_all(shop.kafka.bootstrap, [shop.topic])}
    found = {event: (header(seen[event], "traceparent"), header(seen[event], "tenant")) for event in seen}
    assert found == {plain: ("t1", ""), added: ("t2", "acme"), dropped: ("", "bcme")}


def test_a_required_column_is_renamed_and_back(shop: Shop) -> None:
    """Row 25. Rows under each name need settings that fit them; rows on either side of a change must not block them."""
    till = Till(shop)
    shop.start().stop()
    old = till.sell()
    here = lsn(shop)
    shop.execute("ALTER TABLE outbox RENAME COLUMN aggregateid TO subject")
    renamed = till.sell(key_column="subject")
    shop.execute("ALTER TABLE outbox RENAME COLUMN subject TO aggregateid")
    new = till.sell()
    shop.start(wait=False).failed("LayoutMismatch")
    assert [sighting.id for sighting in shop.published()] == [old]
    assert shop.positions()[-1].lsn <= here
    # The table is as before, yet the row in between still has its old column names: it is not skipped.
    shop.start(wait=False).failed("LayoutMismatch")
    shop.configure(outbox={"columns": {"timestamp": "created_at", "key": "subject"}})
    shop.start(wait=False).failed("LayoutMismatch")
    assert [sighting.id for sighting in shop.published()] == [old, renamed]
    shop.configure(outbox={"columns": {"timestamp": "created_at"}})
    shop.start()
    right(shop)
    assert [sighting.id for sighting in shop.published()] == [old, renamed, new]


@pytest.mark.parametrize("seen_before", [True, False])
def test_the_table_is_renamed_and_back(shop: Shop, seen_before: bool) -> None:
    """Row 24. Rows written under the other name are rows of the same table; they are known by its number."""
    till = Till(shop)
    connector = shop.start()
    if seen_before:
        till.sell()
        right(shop)
    connector.process.send_signal(signal.SIGSTOP)
    shop.execute("ALTER TABLE outbox RENAME TO elsewhere")
    till.sell(table="elsewhere")
    shop.execute("ALTER TABLE elsewhere RENAME TO outbox")
    till.sell()
    connector.process.send_signal(signal.SIGCONT)
    right(shop)


def test_the_table_is_renamed_for_good(shop: Shop) -> None:
    """Row 24."""
    till = Till(shop)
    connector = shop.start()
    till.sell()
    right(shop)
    shop.execute("ALTER TABLE outbox RENAME TO elsewhere")
    here = lsn(shop)
    till.sell(table="elsewhere")
    connector.failed("PublicationBroken")
    assert shop.positions()[-1].lsn <= here
    shop.start(wait=False).failed("PublicationBroken")
    shop.execute("ALTER TABLE elsewhere RENAME TO outbox")
    shop.start()
    right(shop)


def test_the_table_is_dropped_and_created_anew(shop: Shop) -> None:
    """In a publication of all tables it has no membership that could tell."""
    shop.execute(f"CREATE PUBLICATION {shop.slot} FOR ALL TABLES WITH (publish = 'insert')")
    till = Till(shop)
    connector = shop.start()
    till.sell()
    right(shop)
    shop.execute("CREATE TABLE fresh (LIKE outbox INCLUDING ALL)")
    shop.execute("DROP TABLE outbox")
    shop.execute("ALTER TABLE fresh RENAME TO outbox")
    till.sell()
    connector.failed("PublicationBroken")
    shop.start("--adopt")
    right(shop)


def test_purges_and_marks_emit_nothing(shop: Shop) -> None:
    """Row 26, with the publication that Tailrace makes."""
    till = Till(shop)
    shop.execute("ALTER TABLE outbox ADD COLUMN delivered bool")
    shop.configure(source={"on_change": "halt"})
    shop.start()
    for _ in range(3):
        till.sell()
    right(shop)
    shop.execute("UPDATE outbox SET delivered = true")
    shop.execute("DELETE FROM outbox")
    till.sell()
    shop.execute("TRUNCATE outbox")
    till.sell()
    right(shop)


@pytest.mark.parametrize("change", ["UPDATE outbox SET traceparent = 'x'", "TRUNCATE outbox"])
def test_changes_through_a_publication_of_everything(shop: Shop, change: str) -> None:
    """Row 26: ignored or refused, as `on_change` says; never published."""
    shop.execute(f"CREATE PUBLICATION {shop.slot} FOR TABLE outbox")
    shop.configure(source={"on_change": "halt"})
    till = Till(shop)
    connector = shop.start()
    till.sell()
    right(shop)
    here = lsn(shop)
    shop.execute(change)
    till.sell()
    connector.failed("UnexpectedChange")
    assert shop.positions()[-1].lsn <= here
    shop.configure(source={"on_change": "ignore"})
    shop.start()
    shop.execute("DELETE FROM outbox")
    till.sell()
    right(shop)


def test_a_long_open_transaction_beside_many_commits(shop: Shop) -> None:
    """Row 30: order is the order of commits, not of inserts."""
    till = Till(shop)
    shop.start()
    with psycopg.connect(shop.dsn) as slow:
        entry, statement, values = till.prepare("outbox", "aggregateid", {})
        slow.execute(statement, values)  # type: ignore[call-overload]
        events = [till.sell() for _ in range(50)]
        right(shop)
        slow.commit()
        till.committed(entry)
    right(shop)
    assert [sighting.id for sighting in shop.published()] == [*events, entry.id]


def test_an_idle_outbox_beside_a_busy_table(shop: Shop) -> None:
    """Row 32, I8: the slot moves although nothing is published."""
    connector = shop.start()
    Till(shop).sell()
    right(shop)
    shop.execute("CREATE TABLE busy AS SELECT generate_series(1, 50000)")
    here = lsn(shop)

    def moved() -> bool:
        shop.execute("UPDATE busy SET generate_series = 1 WHERE generate_series <= 100")
        shop.execute("SELECT pg_log_standby_snapshot()")  # the server's own comes every 15 s; restart_lsn needs one
        slots = shop.execute(
            "SELECT least(restart_lsn, confirmed_flush_lsn) - '0/0' FROM pg_replication_slots WHERE slot_name = %s",
            shop.slot,
        )
        return bool(int(slots[0][0]) > here)

    wait_until(moved, 120, what="the slot's moving on")
    assert connector.running
    verdict = shop.verdict()
    assert verdict.ok, verdict
    assert verdict.published == 1


PARTITIONED = """
DROP TABLE outbox;
CREATE TABLE outbox (
    id uuid, aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload jsonb,
    traceparent text, created_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (id, aggregateid)
) PARTITION BY HASH (aggregateid);
CREATE TABLE outbox_0 PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE outbox_1 (LIKE outbox INCLUDING ALL);
ALTER TABLE outbox_1 ADD COLUMN gone int;
ALTER TABLE outbox_1 DROP COLUMN gone;
ALTER TABLE outbox ATTACH PARTITION outbox_1 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
"""


def test_a_partitioned_outbox(shop: Shop) -> None:
    """Rows come under the name and the columns of the root, those of the table as well as those of the log."""
    shop.execute(PARTITIONED)
    shop.configure(source={"start": "beginning", "order_by": ["created_at", "id", "aggregateid"]})
    writer = shop.writer()
    for _ in range(20):
        writer.transaction()
    shop.start()
    for _ in range(20):
        writer.transaction()
    right(shop)
    partitions = shop.execute("SELECT count(*) FROM (SELECT DISTINCT tableoid FROM outbox) parts")
    assert partitions == [(2,)], "the workload did not reach both partitions"


def test_partitions_published_one_by_one_are_refused(shop: Shop) -> None:
    """Rows would come under the partitions' names, and not be recognised."""
    shop.execute(PARTITIONED)
    shop.execute(f"CREATE PUBLICATION {shop.slot} FOR TABLE outbox WITH (publish = 'insert')")
    shop.start(wait=False).failed("PublicationBroken")


@pytest.fixture(scope="module")
def preparing() -> Iterator[PostgresServer]:
    """A server that can prepare transactions."""
    with PostgresServer("16", choice=ServerChoice.LOCAL, settings={"max_prepared_transactions": "5"}) as server:
        yield server


def test_prepared_transactions(preparing: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> None:
    """They come once, when they are committed; the slot waits for them, and a restart in between changes nothing."""
    shop = open_shop(preparing, kafka, tmp_path)
    till = Till(shop)
    connector = shop.start()
    entries = []
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        for name in ("kept", "given_up"):
            entry, statement, values = till.prepare("outbox", "aggregateid", {})
            connection.execute("BEGIN")
            connection.execute(statement, values)  # type: ignore[call-overload]
            connection.execute(f"PREPARE TRANSACTION '{name}'")
            entries.append(entry)
    till.sell()
    right(shop)
    assert connector.stop() == 0
    shop.start()
    till.sell()
    right(shop)
    shop.execute("COMMIT PREPARED 'kept'")
    till.committed(entries[0])
    shop.execute("ROLLBACK PREPARED 'given_up'")
    till.sell()
    right(shop)
    close_shop(shop)
