"""Row 34 of the fault matrix: a standby replaces the primary, with or without the slot, or without the last rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from helpers.command import Tailrace
from helpers.recovery import apply, goes_on, passed_all, plan, ran_before, refused, work
from helpers.shop import Shop
from helpers.standby import Pair, open_pair
from tailrace import failpoints
from tailrace.config.load import load_pipeline
from tailrace.positions.base import to_stored
from tailrace.state import rewind_marker
from tailrace.testkit.stack import KafkaBroker, wait_until
from tailrace.testkit.topic_reader import header, read_all
from tailrace.worker.options import kafka_options


@pytest.fixture
def pair(kafka: KafkaBroker, tmp_path: Path) -> Iterator[Pair]:
    """Postgres 16: slots are not copied to the standby."""
    with open_pair("16", kafka, tmp_path) as pair:
        yield pair


@pytest.fixture
def synchronised(kafka: KafkaBroker, tmp_path: Path) -> Iterator[Pair]:
    """Postgres 18 copies slots to the standby, and streams only rows that the standby has."""
    with open_pair(
        "18",
        kafka,
        tmp_path,
        settings={"synchronized_standby_slots": "follower"},
        standby={
            "synchronized_standby_slots": "",
            "hot_standby_feedback": "on",
            "primary_slot_name": "follower",
        },
        prepare="SELECT pg_create_physical_replication_slot('follower')",
    ) as pair:
        pair.shop.configure(source={"failover": True})
        yield pair


@pytest.mark.slow
def test_a_failover_without_the_slot(pair: Pair) -> None:
    """All rows are there, only the slot is missing; the position history stays valid on the new timeline."""
    shop = pair.shop
    connector = shop.start()
    shop.writer()
    work(shop)
    assert not shop.caught_up().missing
    passed_all(shop)
    assert connector.stop() == 0
    before = len(shop.writers[0].written)
    work(shop)
    pair.standby.caught_up()
    pair.fail_over()
    work(shop)
    shop.start(wait=False).failed("SlotMissing")
    planned = plan(shop)
    assert planned["case"]["code"] == "SlotMissing", planned
    assert (planned["missed"], planned["undecided"]) == (len(shop.writers[0].written) - before, 0), planned
    assert planned["left_out"]["passed"] == before, "the snapshot in the position history is of the old timeline"
    assert not any("stay published" in note for note in planned["notes"]), planned
    apply(shop)
    goes_on(shop)


def copy_slot_to_standby(pair: Pair) -> None:
    """Waits until the slot is on the standby."""
    shop = pair.shop

    def synced() -> bool:
        # A slot is copied once no transaction is running at its position, and a little later: a server's worker waits
        # for that. None of these statements gets a transaction id.
        shop.execute("SELECT pg_log_standby_snapshot(), pg_logical_emit_message(false, 'x', 'x')")
        session.execute("SELECT pg_sync_replication_slots()")
        look = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = %s"
        return session.execute(look, (shop.slot,)).fetchone() == (True,)

    with pair.standby.connect() as session:
        wait_until(synced, 60, what="the slot to be on the standby")


def test_a_failover_with_the_slot(synchronised: Pair) -> None:
    """The pipeline continues through it: positions of the old timeline are valid on the new one."""
    pair, shop = synchronised, synchronised.shop
    connector = shop.start()
    shop.writer()
    work(shop)

    copy_slot_to_standby(pair)
    work(shop)
    assert not shop.caught_up().missing
    # The address may move before the standby is promoted: the connector waits for that.
    pair.fail_over(before=lambda: connector.says("is synchronised"))
    work(shop)
    verdict = shop.caught_up(120)
    assert verdict.ok, (verdict, connector.log)
    assert connector.running
    assert connector.log.count('"running"') == 2, connector.log
    assert {position.log.timeline for position in shop.positions()} == {1, 2}
    assert connector.stop() == 0
    work(shop)
    shop.start()
    verdict = shop.caught_up()
    assert verdict.ok, verdict


@pytest.mark.slow
def test_a_rewind_before_a_failover(synchronised: Pair, tailrace: Tailrace) -> None:
    """Events that are published again on the new timeline are marked as replayed; new ones are not."""
    pair, shop = synchronised, synchronised.shop
    connector = shop.start()
    shop.writer()
    copy_slot_to_standby(pair)
    assert connector.stop() == 0
    # Only now: a slot that is held back is not copied.
    shop.configure(source={"replay_window": "1 GiB"})
    connector = shop.start()
    work(shop)
    assert not shop.caught_up().missing
    assert connector.stop() == 0
    before = {seen.id for seen in shop.published()}
    tailrace("position", "reset", shop.file, "--to", "oldest", "--yes")
    pair.standby.caught_up()
    pair.fail_over()
    work(shop, 1)
    # Its position is on the new timeline by then; the rewind was stored on the old one.
    shop.start(kill=failpoints.ROWS_READ, wait=False).ended()
    shop.start()

    def again() -> Counter[str]:
        found = read_all(shop.kafka.bootstrap, [shop.topic])
        return Counter(header(each, "id") for each in found if header(each, "tailrace.replay"))

    wait_until(lambda: not before - again().keys(), 60, what="everything since then to come again")
    assert not shop.caught_up().missing
    assert again() == Counter(before)
    assert tailrace("verify", shop.file)["clean"]
    assert {position.log.timeline for position in shop.positions()} == {1, 2}


def gone(shop: Shop) -> set[str]:
    """Returns events that are published and not in the table."""
    return {seen.id for seen in [*shop.published(), *shop.dead_lettered()]} - shop.in_outbox()


@pytest.mark.slow
def test_a_standby_that_lacks_the_last_rows(pair: Pair, tailrace: Tailrace) -> None:
    """They were published: the error names that, and none of them is published again."""
    shop = pair.shop
    shop.configure(source={"replay_window": "1 GiB"})
    ran_before(shop)
    first = shop.published()[0].id
    pair.standby.caught_up()
    pair.standby.fall_behind()
    connector = shop.start()
    work(shop)
    assert not shop.caught_up().missing
    assert connector.stop() == 0
    last = shop.writers[0].written[-1].id
    lost = shop.execute("SELECT to_jsonb(outbox)::text FROM outbox WHERE id = %s", last)[0][0]
    reached = shop.positions()[-1]
    tailrace("position", "reset", shop.file, "--to", f"event:{first}", "--yes")
    pair.fail_over()
    assert len(gone(shop)) == 9
    before = len(shop.writers[0].written)
    work(shop)

    def check_plan() -> None:
        planned = plan(shop)
        assert planned["case"]["code"] == "WrongLog", planned
        assert (planned["missed"], planned["undecided"]) == (len(shop.writers[0].written) - before, 0), planned
        assert any("left timeline 1 at" in note and "stay published" in note for note in planned["notes"]), planned

    # Rewound to where both logs are the same: events published after that still count.
    check_plan()
    stopped = shop.start(wait=False)
    stopped.failed("WrongLog")
    assert "rewound from" in stopped.log
    kafka = kafka_options(load_pipeline(shop.file))
    rewind_marker.forget(kafka)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(kafka.offsets_topic, json.dumps(to_stored(reached)), shop.name.encode())
    assert producer.flush(10) == 0
    stopped = shop.start(wait=False)
    stopped.failed("WrongLog")
    assert "rewound from" not in stopped.log
    check_plan()
    # The service repeats what the database has lost: the same event is recognised; another event with its id is not.
    again = "INSERT INTO outbox SELECT * FROM jsonb_populate_record(NULL::outbox, %s::jsonb || %s::jsonb)"
    shop.execute(again, lost, json.dumps({"payload": {"order": "another"}}))
    assert last in refused(shop, "RecoveryUncertain")
    shop.execute("DELETE FROM outbox WHERE id = %s", last)
    shop.execute(again, lost, "{}")
    apply(shop)
    goes_on(shop)
    assert len(gone(shop)) == 8
