"""The regular check of the outbox's tables: which changes it refuses and allows, without waiting for locks."""

from __future__ import annotations

import psycopg
import pytest

from helpers.command import Tailrace
from helpers.partitioned import insert, looked, partition, paused, published
from helpers.recovery import refused
from helpers.shop import Shop
from tailrace.testkit.stack import wait_until


def test_an_inheriting_table_is_refused(shop: Shop, tailrace: Tailrace) -> None:
    """Noticed while running, refused at a start; the printed remedy is run unchanged."""
    connector = shop.start()
    events = [insert(shop)]
    published(shop, events)
    shop.execute("CREATE TABLE child () INHERITS (outbox)")
    events.append(insert(shop, "child"))
    connector.failed("PublicationBroken")
    shop.start(wait=False).failed("PublicationBroken")
    found = tailrace("check", shop.file, code=1)["checks"]
    table = next(each for each in found if each["name"] == "table")
    assert (table["state"], "child inherits" in table["found"]) == ("FAIL", True), table
    assert "child" in refused(shop, "PublicationBroken")
    for statement in table["remedy"].partition(": ")[2].replace("Then: ", "").split(";"):
        if statement.strip():
            shop.execute(statement)
    shop.start()
    published(shop, events)


@pytest.mark.slow
def test_changes_that_add_no_rows_are_allowed(shop: Shop) -> None:
    """New partitions, attached empty or created as partitions; rewrites; then a start after the same changes."""
    partition(shop)
    connector = shop.start()
    events = [insert(shop)]

    def change(number: int) -> None:
        shop.execute(f"CREATE TABLE born_{number} PARTITION OF outbox FOR VALUES IN ('born{number}')")
        shop.execute(f"CREATE TABLE empty_{number} (LIKE outbox INCLUDING ALL)")
        shop.execute(f"ALTER TABLE outbox ATTACH PARTITION empty_{number} FOR VALUES IN ('empty{number}')")
        for key in (f"born{number}", f"empty{number}", "k"):
            events.append(insert(shop, key=key))
        shop.execute("VACUUM FULL outbox_k")
        shop.execute("GRANT SELECT ON outbox_k TO PUBLIC")
        shop.execute(f"ALTER TABLE outbox ADD COLUMN added_{number} uuid DEFAULT gen_random_uuid()")
        shop.execute("ALTER TABLE outbox DETACH PARTITION outbox_rest")
        shop.execute("ALTER TABLE outbox ATTACH PARTITION outbox_rest DEFAULT")
        events.append(insert(shop))

    paused(connector, lambda: change(1))
    published(shop, events)
    looked(shop, connector)
    assert connector.stop() == 0
    change(2)
    connector = shop.start()
    shop.execute("ALTER TABLE outbox DETACH PARTITION outbox_rest")
    with psycopg.connect(shop.dsn) as reader:
        reader.execute("SELECT FROM outbox")
        # It stays half done, as it does while it waits for other transactions.
        with (
            psycopg.connect(shop.dsn, options="-c statement_timeout=500", autocommit=True) as connection,
            pytest.raises(psycopg.errors.QueryCanceled),
        ):
            connection.execute("ALTER TABLE outbox DETACH PARTITION born_1 CONCURRENTLY")
    looked(shop, connector)
    published(shop, [*events, insert(shop)])
    assert connector.running


def test_a_lock_on_another_table_delays_nothing(shop: Shop) -> None:
    """With FOR ALL TABLES: neither a start nor the stored position waits for that lock."""
    shop.execute(f"CREATE PUBLICATION {shop.slot} FOR ALL TABLES WITH (publish = 'insert')")
    shop.execute("CREATE TABLE elsewhere (id int)")
    assert shop.start().stop() == 0
    with psycopg.connect(shop.dsn) as connection:
        connection.execute("LOCK TABLE elsewhere IN ACCESS EXCLUSIVE MODE")
        connector = shop.start()
        published(shop, [insert(shop)])
        here = int(shop.execute("SELECT pg_current_wal_lsn() - '0/0'")[0][0])

        def moved() -> bool:
            shop.execute("INSERT INTO orders VALUES (gen_random_uuid(), 1, 1)")
            return (shop.confirmed_lsn() or 0) > here

        wait_until(moved, 60, what="an idle position to be stored")
        assert connector.log.count('"running"') == 1, connector.log
