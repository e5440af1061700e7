"""Rows that enter the outbox past its publication: the log never brings them, so the pipeline must not just go on.

Every change is made between two looks at the catalogue (the connector is paused), where nothing but its traces is left.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable

import psycopg
import pytest

from fix_command import Tailrace
from fix_shop import Connector, Shop
from recovering import apply, passed_all, plan, refused
from tailrace.stack import wait_until

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
    """Waits until they are on Kafka; each is there once, and nothing else is."""
    wait_until(lambda: set(events) <= {seen.id for seen in shop.published()}, timeout, what="the events")
    assert sorted(seen.id for seen in shop.published()) == sorted(events)


def paused(connector: Connector, *changes: Callable[[], object]) -> list[object]:
    """Makes all the changes between two looks."""
    connector.process.send_signal(signal.SIGSTOP)
    done = [change() for change in changes]
    connector.process.send_signal(signal.SIGCONT)
    return done


def sql(shop: Shop, statement: str) -> Callable[[], object]:
    return lambda: shop.execute(statement)


def looked(shop: Shop, connector: Connector) -> None:
    """Waits until a look at the catalogue has found all as it must be."""
    here = int(shop.execute("SELECT pg_current_xact_id()::text::bigint")[0][0])

    def found() -> bool:
        shop.execute("SELECT pg_current_xact_id()")
        return shop.positions()[-1].watched > here or not connector.running

    wait_until(found, 60, what="a look")
    assert connector.running, connector.log


def halted(shop: Shop, connector: Connector, tailrace: Tailrace, words: str) -> None:
    """By a named error, also at the next start; `check` says the same."""
    connector.failed("PublicationBroken")
    assert words in connector.log
    shop.start(wait=False).failed("PublicationBroken")
    (start,) = [each for each in tailrace("check", shop.file, code=1)["checks"] if each["state"] == "FAIL"]
    assert words in start["found"], start
    assert "recover" in start["remedy"]


def recovered(shop: Shop, events: list[str], missed: int) -> None:
    """Exactly the missed rows are published, and it goes on."""
    told = plan(shop)
    assert (told["case"]["code"], told["missed"], told["undecided"]) == ("PublicationBroken", missed, 0), told
    assert apply(shop)["published"] == missed
    shop.start()
    published(shop, [*events, insert(shop)])


def test_a_partition_is_detached_filled_and_attached(shop: Shop, tailrace: Tailrace) -> None:
    """Its rows are older than snapshots that the ledger took for passed: a recovery must not believe those."""
    partition(shop)
    connector = shop.start()
    events = [insert(shop), insert(shop, key="other")]
    published(shop, events)
    shop.execute("ALTER TABLE outbox DETACH PARTITION outbox_k")
    lost = insert(shop, "outbox_k")
    events.append(insert(shop, key="other"))
    passed_all(shop)
    published(shop, events)
    assert connector.running, "to detach a partition is no loss"
    shop.execute("ALTER TABLE outbox ATTACH PARTITION outbox_k FOR VALUES IN ('k')")
    halted(shop, connector, tailrace, "outbox_k was attached")
    recovered(shop, [*events, lost], 1)


def test_in_one_transaction(shop18: Shop) -> None:
    """A table that is created, filled and attached at once; one that is detached, filled and attached within a look."""
    shop = shop18
    partition(shop)
    connector = shop.start()
    events = [insert(shop)]
    published(shop, events)
    events.append(str(uuid.uuid4()))
    with psycopg.connect(shop.dsn) as connection:
        connection.execute("CREATE TABLE outbox_new (LIKE outbox INCLUDING ALL)")
        connection.execute(
            "INSERT INTO outbox_new (id, aggregatetype, aggregateid, type, payload) "
            "VALUES (%s, 'order', 'new', 'OrderPlaced', %s)",
            (events[-1], PAYLOAD),
        )
        connection.execute("ALTER TABLE outbox ATTACH PARTITION outbox_new FOR VALUES IN ('new')")
    connector.failed("PublicationBroken")
    recovered(shop, events, 1)
    events.append(shop.published()[-1].id)
    connector = shop.connectors[-1]
    lost: list[str] = []
    paused(
        connector,
        sql(shop, "ALTER TABLE outbox DETACH PARTITION outbox_k"),
        lambda: lost.append(insert(shop, "outbox_k")),
        sql(shop, "ALTER TABLE outbox ATTACH PARTITION outbox_k FOR VALUES IN ('k')"),
    )
    connector.failed("PublicationBroken")
    recovered(shop, [seen.id for seen in shop.published()] + lost, 1)


UNSEEN = {
    "unlogged": (
        "FOR ALL TABLES",
        "ALTER TABLE outbox SET UNLOGGED",
        "outbox",
        "ALTER TABLE outbox SET LOGGED",
        "rewritten",
    ),
    "elsewhere": (
        "FOR TABLES IN SCHEMA public",
        "ALTER TABLE outbox SET SCHEMA away",
        "away.outbox",
        "ALTER TABLE away.outbox SET SCHEMA public",
        "moved to another schema",
    ),
}


@pytest.mark.parametrize("case", UNSEEN)
def test_between_two_looks(shop: Shop, tailrace: Tailrace, case: str) -> None:
    publication, before, table, after, words = UNSEEN[case]
    shop.execute(f"CREATE PUBLICATION {shop.slot} {publication} WITH (publish = 'insert')")
    shop.execute("CREATE SCHEMA away")
    connector = shop.start()
    events = [insert(shop)]
    published(shop, events)
    done = paused(connector, sql(shop, before), lambda: insert(shop, table), sql(shop, after))
    events.append(str(done[1]))
    events.append(insert(shop))
    halted(shop, connector, tailrace, words)
    left_out = len(events) - len(shop.published())
    recovered(shop, events, left_out)


def test_an_inheriting_table(shop: Shop, tailrace: Tailrace) -> None:
    """Noticed while running, refused at a start; the remedy is run as it stands."""
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


def test_what_lets_no_row_in(shop: Shop) -> None:
    """New partitions, attached empty or created as such; rewrites that are no secret; then a start after the same."""
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
        # It is left half done, as it is for as long as it waits for others.
        with (
            psycopg.connect(shop.dsn, options="-c statement_timeout=500", autocommit=True) as connection,
            pytest.raises(psycopg.errors.QueryCanceled),
        ):
            connection.execute("ALTER TABLE outbox DETACH PARTITION born_1 CONCURRENTLY")
    looked(shop, connector)
    published(shop, [*events, insert(shop)])
    assert connector.running


def test_another_table_is_locked(shop: Shop) -> None:
    """Under FOR ALL TABLES: neither a start nor the stored position waits for that lock."""
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
