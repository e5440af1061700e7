"""Rows 23 and 24 of the fault matrix: changes of the publication never lose a row silently.

Postgres up to 17 ends the stream when the publication is gone, 18 continues without the rows; both must end in FAILED,
with the stored position still before the missing rows.
"""

from __future__ import annotations

import signal

import pytest

from helpers.shop import Connector, Shop
from helpers.tiers import mostly_slow
from tailrace.testkit.stack import wait_until

CREATE = "CREATE PUBLICATION {p} FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)"
# Statements run before and after rows that the stream will not contain.
FAULTS = {
    "dropped": ("DROP PUBLICATION {p}", ""),
    "dropped and re-created": ("DROP PUBLICATION {p}", CREATE),
    "table taken out": ("ALTER PUBLICATION {p} DROP TABLE outbox", ""),
    "table taken out and put back": (
        "ALTER PUBLICATION {p} DROP TABLE outbox",
        "ALTER PUBLICATION {p} ADD TABLE outbox",
    ),
    "no inserts for a while": (
        "ALTER PUBLICATION {p} SET (publish = 'update')",
        "ALTER PUBLICATION {p} SET (publish = 'insert')",
    ),
}


@pytest.fixture(params=mostly_slow(["16", "18"], ["16"]))
def either(request: pytest.FixtureRequest) -> Shop:
    shop: Shop = request.getfixturevalue("shop" if request.param == "16" else "shop18")
    return shop


def alter(shop: Shop, statement: str) -> None:
    if statement:
        shop.execute(statement.format(p=shop.slot))


def lsn(shop: Shop) -> int:
    return int(shop.execute("SELECT pg_current_wal_lsn() - '0/0'")[0][0])


def running(shop: Shop) -> Connector:
    """A connector that has published something."""
    connector = shop.start()
    shop.writer().transaction(3, rollback=False)
    assert shop.caught_up().ok
    return connector


def pass_over(shop: Shop, fault: str) -> int:
    """Injects the fault around three rows, then writes three more; returns the LSN just before the first of them."""
    before, after = FAULTS[fault]
    alter(shop, before)
    here = lsn(shop)
    shop.writers[0].transaction(3, rollback=False)
    alter(shop, after)
    shop.writers[0].transaction(3, rollback=False)
    return here


def position_before(shop: Shop, here: int) -> None:
    """No stored or confirmed position is behind `here`; the published events are right except for the missing rows."""
    assert shop.positions()[-1].lsn <= here
    verdict = shop.verdict()
    assert len(verdict.missing) == 6
    verdict.missing.clear()
    assert verdict.ok, verdict


@pytest.mark.parametrize("fault", mostly_slow(FAULTS, ["dropped", "table taken out and put back"]))
def test_publication_changes_while_running(shop: Shop, fault: str) -> None:
    connector = running(shop)
    here = pass_over(shop, fault)
    connector.failed("PublicationBroken")
    if FAULTS[fault][1]:
        # The catalog looks as before now; a new start must still detect the gap.
        shop.start(wait=False).failed("PublicationBroken")
    position_before(shop, here)


@pytest.mark.parametrize("fault", mostly_slow(["dropped", "dropped and re-created"], ["dropped and re-created"]))
def test_publication_changes_while_running_on_18(shop18: Shop, fault: str) -> None:
    """The stream continues: the drop is found by the check before an idle position is stored."""
    connector = running(shop18)
    here = pass_over(shop18, fault)
    connector.failed("PublicationBroken")
    position_before(shop18, here)


def test_a_publication_dropped_while_stopped(shop: Shop) -> None:
    """It is not re-created: `create: true` is for the first start; later it would hide the loss."""
    assert running(shop).stop() == 0
    here = pass_over(shop, "dropped")
    shop.start(wait=False).failed("PublicationBroken")
    assert shop.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", shop.slot) == []
    position_before(shop, here)


def test_adopt_continues_at_the_stored_position(either: Shop) -> None:
    """Only rows written without a publication are missing; the remedy of the error is carried out."""
    shop = either
    assert running(shop).stop() == 0
    alter(shop, "DROP PUBLICATION {p}")
    lost = [entry.id for entry in shop.writers[0].transaction(3, rollback=False)]
    alter(shop, CREATE)
    connector = shop.start("--adopt", wait=False)
    if shop.postgres.version == "16":
        # The slot must be decoded through a time without the publication, which this server cannot do.
        connector.failed("PublicationBroken")
        assert "re-create the slot" in connector.log
        shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
        shop.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", shop.slot)
        shop.start("--adopt")
    new = [entry.id for entry in shop.writers[0].transaction(3, rollback=False)]
    wait_until(lambda: not set(new) & set(shop.verdict().missing), 60, what="new events")
    verdict = shop.verdict()
    assert sorted(verdict.missing) == sorted(lost)
    verdict.missing.clear()
    assert verdict.ok, verdict


def test_a_publication_of_a_schema(shop: Shop) -> None:
    """The table itself is no member: removing its schema and adding it back must be noticed, too."""
    alter(shop, "CREATE PUBLICATION {p} FOR TABLES IN SCHEMA public WITH (publish = 'insert')")
    assert running(shop).stop() == 0
    alter(shop, "ALTER PUBLICATION {p} DROP TABLES IN SCHEMA public")
    here = lsn(shop)
    shop.writers[0].transaction(6, rollback=False)
    alter(shop, "ALTER PUBLICATION {p} ADD TABLES IN SCHEMA public")
    shop.start(wait=False).failed("PublicationBroken")
    position_before(shop, here)


def test_rows_of_other_tables_do_not_move_the_position_past_missing_rows(shop: Shop) -> None:
    """One read has outbox rows, the outbox's removal, and rows of another table: the position must not follow those."""
    alter(shop, "CREATE PUBLICATION {p} FOR TABLE outbox, orders WITH (publish = 'insert')")
    connector = running(shop)
    connector.process.send_signal(signal.SIGSTOP)
    shop.writers[0].transaction(3, rollback=False)
    alter(shop, "ALTER PUBLICATION {p} DROP TABLE outbox")
    here = lsn(shop)
    shop.writers[0].transaction(3, rollback=False)
    shop.execute("INSERT INTO orders VALUES ('elsewhere', 1, 1)")
    connector.process.send_signal(signal.SIGCONT)
    connector.failed("PublicationBroken")
    assert shop.positions()[-1].lsn <= here
