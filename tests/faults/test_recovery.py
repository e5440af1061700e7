"""Rows 10, 11, 20 and 22-24 of the fault matrix: the gap is closed, and nothing is published twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from helpers.command import Tailrace
from helpers.parking import BAD, good
from helpers.recovery import (
    apply,
    goes_on,
    offsets_deleted,
    plan,
    ran_before,
    recover,
    refused,
    right,
    slot_dropped,
    work,
)
from helpers.shop import Shop
from tailrace import failpoints
from tailrace.positions.base import to_stored
from tailrace.positions.postgres import format_lsn
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import stored_positions

CREATE = "CREATE PUBLICATION {p} FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)"


def slot_advanced(shop: Shop) -> None:
    work(shop)
    shop.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", shop.slot)


def publication_made_anew(shop: Shop) -> None:
    shop.execute(f"DROP PUBLICATION {shop.slot}")
    work(shop)
    shop.execute(CREATE.format(p=shop.slot))
    work(shop)


def table_taken_out(shop: Shop) -> None:
    shop.execute(f"ALTER PUBLICATION {shop.slot} DROP TABLE outbox")
    work(shop)


def store(shop: Shop, change: Callable[[dict[str, Any]], None]) -> None:
    """Stores the last position again, with a change."""
    topic = shop.settings["kafka"].get("offsets_topic", "tailrace-offsets")
    stored = to_stored(stored_positions(shop.kafka.bootstrap, shop.name, topic)[-1])
    change(stored)
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    producer.produce(topic, json.dumps(stored), shop.name.encode())
    assert producer.flush(10) == 0


def position_ahead(shop: Shop) -> None:
    """As after a restore without a new timeline."""
    work(shop)
    far = int(shop.execute("SELECT pg_current_wal_lsn() - '0/0'")[0][0]) + 2**32
    store(shop, lambda stored: stored.update(lsn=format_lsn(far)))


# Row of the matrix, what happens while the pipeline is stopped, the error of a start.
FAULTS: list[tuple[int, Callable[[Shop], None], str]] = [
    (20, slot_dropped, "SlotMissing"),
    (22, slot_advanced, "SlotAhead"),
    (23, publication_made_anew, "PublicationBroken"),
    (24, table_taken_out, "PublicationBroken"),
    (11, position_ahead, "PositionAhead"),
    (10, offsets_deleted, "SlotUnclaimed"),
]


@pytest.mark.slow
def test_one_loss_after_another(shop: Shop, tailrace: Tailrace) -> None:
    """A plan changes nothing; it is refused while the pipeline runs or is healthy; then each case is recovered."""
    shop.configure(source={"start": "beginning"}, kafka={"offsets_topic": f"{shop.name}.offsets"})
    ran_before(shop)
    assert plan(shop)["case"] is None
    assert "nothing to recover" in refused(shop, "ConfigError")
    for row, fault, code in FAULTS:
        before = len(shop.writers[0].written)
        fault(shop)
        missed = len(shop.writers[0].written) - before
        if fault is slot_advanced:
            slot, seen = shop.confirmed_lsn(), len(shop.published())
            result = plan(shop)
            assert (result["missed"], result["undecided"]) == (missed, 0), result
            assert (shop.confirmed_lsn(), len(shop.published())) == (slot, seen)
        if fault is table_taken_out:
            # The advice of `check`: fix the publication, then `recover`. --adopt comes last, with its consequences.
            (found,) = (
                each for each in tailrace("check", shop.file, code=1)["checks"] if each["name"] == "publication"
            )
            statement, _, advice = found["remedy"].partition(" -- ")
            assert 0 < advice.index("recover apply") < advice.index("--adopt") < advice.index("never get them"), advice
            shop.execute(statement)
        done = apply(shop)
        assert (done["case"], done["missed"]) == (code, missed), (row, done)
        assert done["published"] + done["dead_letters"] == missed, (row, done)
        right(shop)
    connector = shop.start()
    assert "is running" in refused(shop, "ConfigError", "--force")
    work(shop, 1)
    right(shop)
    assert connector.stop() == 0


@pytest.mark.slow
def test_killed_at_each_step(shop: Shop) -> None:
    """Run again and again, killed a little later each time; until it is complete, a start refuses."""
    shop.configure(limits={"batch_records": 5}, source={"order_by": ["created_at", "id"]})
    ran_before(shop)
    slot_dropped(shop)
    work(shop, 10)
    # Positions without rows are stored at the start, when the slot exists, and at the end.
    points = (
        failpoints.SLOT_INTENDED,
        failpoints.SLOT_CREATED,
        f"{failpoints.TABLE_ROWS_READ}:2",
        f"{failpoints.AFTER_PRODUCE}:4",
        f"{failpoints.AFTER_COMMIT}:2",
    )
    for point in points:
        killed = recover(shop, "apply", "--yes", kill=point)
        assert killed.returncode == -9, (point, killed.stderr)
    shop.start("--adopt", wait=False).failed("RecoveryUnfinished")
    result = plan(shop)
    assert result["unfinished"]
    assert 0 < result["missed"] < 39, "some were published before"
    assert recover(shop, "apply", "--yes", kill=f"{failpoints.IDLE_STORED}:3").returncode == -9
    goes_on(shop)


def test_parked_keys_keep_waiting(parking: Shop) -> None:
    """A missed event of a parked key is added behind the waiting ones and not published. One that its topic rejects is
    dead-lettered, and the others are published.
    """
    shop = parking
    connector = shop.start()
    shop.insert(BAD, key="parked")
    wait_until(shop.dead_lettered, 60, what="the letter")
    assert connector.stop() == 0
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    waits, free = shop.insert(good(2), key="parked"), shop.insert(good(1), key="free")
    shop.insert(json.dumps({**json.loads(good(1)), "note": "n" * 5000}), key="large")
    admin = shop.kafka.admin()
    entry = ConfigEntry("max.message.bytes", "3000", incremental_operation=AlterConfigOpType.SET)
    for each in admin.incremental_alter_configs(
        [ConfigResource("topic", shop.topic, incremental_configs=[entry])]
    ).values():
        each.result(20)
    done = apply(shop)
    assert (done["published"], done["dead_letters"]) == (1, 1), done
    assert [seen.id for seen in shop.published()] == [free]
    assert plan(shop, "--force")["missed"] == 0, "it is known to wait"
    assert waits not in {seen.id for seen in shop.published()}


@pytest.mark.slow
def test_automatic_recovery(shop: Shop) -> None:
    """With `on_log_loss: recover` a start recovers, except from what may be a mistake in the settings."""
    shop.configure(source={"on_log_loss": "recover", "start": "beginning"})
    ran_before(shop)
    slot_dropped(shop)
    shop.start(kill=f"{failpoints.AFTER_COMMIT}:1", wait=False).ended()
    connector = shop.start()
    assert '"recovered"' in connector.log
    work(shop, 1)
    right(shop)
    # Also while it runs.
    shop.execute(f"DROP PUBLICATION {shop.slot}")
    work(shop, 1)
    wait_until(lambda: connector.log.count('"recovered"') == 2 or not connector.running, 90, what="a second recovery")
    right(shop)
    assert connector.stop() == 0
    shop.configure(source={"table": "public.orders"})
    mistaken = shop.start(wait=False)
    mistaken.failed("PublicationBroken")
    assert '"recovering"' not in mistaken.log
    # An address that leads to the old primary again: its later rows must not be published.
    shop.configure(source={"table": "public.outbox"})
    store(shop, lambda stored: stored["log"].update(timeline=2))
    stale = shop.start(wait=False)
    stale.failed("WrongLog")
    assert '"recovering"' not in stale.log
    assert plan(shop)["case"]["code"] == "WrongLog", "a person may"
