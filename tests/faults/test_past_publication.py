"""Rows that enter the outbox without its publication are not in the log, so the pipeline must not continue.

Every change is made between two checks of the catalog (the connector is paused), so only its traces are left.
"""

from __future__ import annotations

import uuid

import psycopg
import pytest

from helpers.command import Tailrace
from helpers.partitioned import PAYLOAD, insert, partition, paused, published, sql
from helpers.recovery import apply, passed_all, plan
from helpers.shop import Connector, Shop
from helpers.tiers import mostly_slow


def halted(shop: Shop, connector: Connector, tailrace: Tailrace, words: str) -> None:
    """Stops with a named error, also at the next start; `check` reports the same."""
    connector.failed("PublicationBroken")
    assert words in connector.log
    shop.start(wait=False).failed("PublicationBroken")
    (start,) = [each for each in tailrace("check", shop.file, code=1)["checks"] if each["state"] == "FAIL"]
    assert words in start["found"], start
    assert "recover" in start["remedy"]


def recovered(shop: Shop, events: list[str], missed: int) -> None:
    """Exactly the missed rows are published, and the pipeline continues."""
    planned = plan(shop)
    assert (planned["case"]["code"], planned["missed"], planned["undecided"]) == ("PublicationBroken", missed, 0), (
        planned
    )
    assert apply(shop)["published"] == missed
    shop.start()
    published(shop, [*events, insert(shop)])


@pytest.mark.slow
def test_a_partition_is_detached_filled_and_attached(shop: Shop, tailrace: Tailrace) -> None:
    """Its rows are older than snapshots of the position history, which a recovery must not trust here."""
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


@pytest.mark.slow
def test_a_table_is_created_filled_and_attached_in_one_transaction(shop18: Shop) -> None:
    """A table that is created, filled and attached at once; one that is detached, filled and attached between two
    checks.
    """
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


@pytest.mark.parametrize("case", mostly_slow(UNSEEN, [*UNSEEN][:1]))
def test_unpublished_rows_between_two_checks(shop: Shop, tailrace: Tailrace, case: str) -> None:
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
