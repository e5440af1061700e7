"""Rows 25, 26, 30 and 32 of the fault matrix, and other changes of an outbox table while it is read."""

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


class RowWriter:
    """Writes single outbox rows and records them as written, also after the table was changed."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._written = shop.writer().written
        self._seq = 0

    def insert(self, *, table: str = "outbox", key_column: str = "aggregateid", **extra: str) -> str:
        """Writes one row in its own transaction; returns its id."""
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
        """Records a commit. Call it in commit order: consumers must see that order."""
        self._seq += 1
        self._written.append(entry._replace(seq=self._seq))


def lsn(shop: Shop) -> int:
    return int(shop.execute("SELECT pg_current_wal_lsn() - '0/0'")[0][0])


def right(shop: Shop) -> None:
    verdict = shop.caught_up()
    assert verdict.ok, verdict


def test_columns_are_added_and_dropped(shop: Shop) -> None:
    """Row 25: an added column becomes a header, a dropped one is no longer sent; also within one transaction."""
    row_writer = RowWriter(shop)
    shop.start()
    plain = row_writer.insert(traceparent="t1")
    shop.execute("ALTER TABLE outbox ADD COLUMN tenant text")
    added = row_writer.insert(traceparent="t2", tenant="acme")
    shop.execute("ALTER TABLE outbox DROP COLUMN traceparent")
    dropped = row_writer.insert(tenant="bcme")
    right(shop)
    seen = {header(message, "id"): message for message in read_all(shop.kafka.bootstrap, [shop.topic])}
    found = {event: (header(seen[event], "traceparent"), header(seen[event], "tenant")) for event in seen}
    assert found == {plain: ("t1", ""), added: ("t2", "acme"), dropped: ("", "bcme")}


@pytest.mark.slow
def test_a_required_column_is_renamed_and_back(shop: Shop) -> None:
    """Row 25. Rows under each name need settings that match; rows before and after a change must not block them."""
    row_writer = RowWriter(shop)
    shop.start().stop()
    old = row_writer.insert()
    here = lsn(shop)
    shop.execute("ALTER TABLE outbox RENAME COLUMN aggregateid TO subject")
    renamed = row_writer.insert(key_column="subject")
    shop.execute("ALTER TABLE outbox RENAME COLUMN subject TO aggregateid")
    new = row_writer.insert()
    shop.start(wait=False).failed("LayoutMismatch")
    assert [sighting.id for sighting in shop.published()] == [old]
    assert shop.positions()[-1].lsn <= here
    # The table is as before, but the row in between still has the old column names: it is not skipped.
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
    """Row 24. Rows written under the other name are rows of the same table; it is recognised by its oid."""
    row_writer = RowWriter(shop)
    connector = shop.start()
    if seen_before:
        row_writer.insert()
        right(shop)
    connector.process.send_signal(signal.SIGSTOP)
    shop.execute("ALTER TABLE outbox RENAME TO elsewhere")
    row_writer.insert(table="elsewhere")
    shop.execute("ALTER TABLE elsewhere RENAME TO outbox")
    row_writer.insert()
    connector.process.send_signal(signal.SIGCONT)
    right(shop)


def test_the_table_is_renamed_for_good(shop: Shop) -> None:
    """Row 24."""
    row_writer = RowWriter(shop)
    connector = shop.start()
    row_writer.insert()
    right(shop)
    shop.execute("ALTER TABLE outbox RENAME TO elsewhere")
    here = lsn(shop)
    row_writer.insert(table="elsewhere")
    connector.failed("PublicationBroken")
    assert shop.positions()[-1].lsn <= here
    shop.start(wait=False).failed("PublicationBroken")
    shop.execute("ALTER TABLE elsewhere RENAME TO outbox")
    shop.start()
    right(shop)


def test_the_table_is_dropped_and_re_created(shop: Shop) -> None:
    """A publication of all tables has no membership that could reveal it."""
    shop.execute(f"CREATE PUBLICATION {shop.slot} FOR ALL TABLES WITH (publish = 'insert')")
    row_writer = RowWriter(shop)
    connector = shop.start()
    row_writer.insert()
    right(shop)
    shop.execute("CREATE TABLE fresh (LIKE outbox INCLUDING ALL)")
    shop.execute("DROP TABLE outbox")
    shop.execute("ALTER TABLE fresh RENAME TO outbox")
    row_writer.insert()
    connector.failed("PublicationBroken")
    shop.start("--adopt")
    right(shop)


def test_deletes_and_updates_publish_nothing(shop: Shop) -> None:
    """Row 26, with the publication that Tailrace creates."""
    row_writer = RowWriter(shop)
    shop.execute("ALTER TABLE outbox ADD COLUMN delivered bool")
    shop.configure(source={"on_change": "halt"})
    shop.start()
    for _ in range(3):
        row_writer.insert()
    right(shop)
    shop.execute("UPDATE outbox SET delivered = true")
    shop.execute("DELETE FROM outbox")
    row_writer.insert()
    shop.execute("TRUNCATE outbox")
    row_writer.insert()
    right(shop)


@pytest.mark.parametrize("change", ["UPDATE outbox SET traceparent = 'x'", "TRUNCATE outbox"])
def test_updates_and_deletes_in_a_publication_of_all_operations(shop: Shop, change: str) -> None:
    """Row 26: ignored or refused, depending on `on_change`; never published."""
    shop.execute(f"CREATE PUBLICATION {shop.slot} FOR TABLE outbox")
    shop.configure(source={"on_change": "halt"})
    row_writer = RowWriter(shop)
    connector = shop.start()
    row_writer.insert()
    right(shop)
    here = lsn(shop)
    shop.execute(change)
    row_writer.insert()
    connector.failed("UnexpectedChange")
    assert shop.positions()[-1].lsn <= here
    shop.configure(source={"on_change": "ignore"})
    shop.start()
    shop.execute("DELETE FROM outbox")
    row_writer.insert()
    right(shop)


def test_a_long_transaction_during_many_commits(shop: Shop) -> None:
    """Row 30: events are ordered by commit, not by insert."""
    row_writer = RowWriter(shop)
    shop.start()
    with psycopg.connect(shop.dsn) as slow:
        entry, statement, values = row_writer.prepare("outbox", "aggregateid", {})
        slow.execute(statement, values)  # type: ignore[call-overload]
        events = [row_writer.insert() for _ in range(50)]
        right(shop)
        slow.commit()
        row_writer.committed(entry)
    right(shop)
    assert [sighting.id for sighting in shop.published()] == [*events, entry.id]


def test_the_slot_of_an_idle_outbox_advances(shop: Shop) -> None:
    """Row 32, I8: the slot advances although nothing is published."""
    connector = shop.start()
    RowWriter(shop).insert()
    right(shop)
    shop.execute("CREATE TABLE busy AS SELECT generate_series(1, 50000)")
    here = lsn(shop)

    def moved() -> bool:
        shop.execute("UPDATE busy SET generate_series = 1 WHERE generate_series <= 100")
        shop.execute("SELECT pg_log_standby_snapshot()")  # the server writes one every 15 s; restart_lsn needs one
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
    """Rows have the name and columns of the root table, both from the table and from the log."""
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
    """Rows would have the partitions' names and not be recognised."""
    shop.execute(PARTITIONED)
    shop.execute(f"CREATE PUBLICATION {shop.slot} FOR TABLE outbox WITH (publish = 'insert')")
    shop.start(wait=False).failed("PublicationBroken")


@pytest.fixture(scope="module")
def preparing() -> Iterator[PostgresServer]:
    """A server that can prepare transactions."""
    with PostgresServer("16", choice=ServerChoice.LOCAL, settings={"max_prepared_transactions": "5"}) as server:
        yield server


def test_prepared_transactions(preparing: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> None:
    """They are published once, when they are committed; the slot waits for them, also across a restart."""
    shop = open_shop(preparing, kafka, tmp_path)
    row_writer = RowWriter(shop)
    connector = shop.start()
    entries = []
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        for name in ("kept", "given_up"):
            entry, statement, values = row_writer.prepare("outbox", "aggregateid", {})
            connection.execute("BEGIN")
            connection.execute(statement, values)  # type: ignore[call-overload]
            connection.execute(f"PREPARE TRANSACTION '{name}'")
            entries.append(entry)
    row_writer.insert()
    right(shop)
    assert connector.stop() == 0
    shop.start()
    row_writer.insert()
    right(shop)
    shop.execute("COMMIT PREPARED 'kept'")
    row_writer.committed(entries[0])
    shop.execute("ROLLBACK PREPARED 'given_up'")
    row_writer.insert()
    right(shop)
    close_shop(shop)
