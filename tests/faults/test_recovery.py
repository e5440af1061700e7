"""Rows 10, 11, 20-24 and 34 of the fault matrix, to their end: the gap is closed, and nothing is published twice."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, OffsetSpec

from fix_parking import BAD, good
from fix_shop import Shop, close_shop, open_shop
from recovering import apply, entries, plan, recover, refused, report, right
from tailrace import killpoint
from tailrace.config.load import load_pipeline
from tailrace.errors import ConfigError
from tailrace.kafka import ledger
from tailrace.kafka.ledger import Entry
from tailrace.lsn import format_lsn
from tailrace.position import to_stored
from tailrace.proof.orders_workload import Mix
from tailrace.proof.reader import stored_positions
from tailrace.sources.postgres.snapshot import Snapshot
from tailrace.stack import KafkaBroker, PostgresServer, Source, wait_until
from tailrace.worker.assembly import kafka_options

CREATE = "CREATE PUBLICATION {p} FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)"


def ran_before(shop: Shop) -> None:
    connector = shop.start()
    shop.writer(mix=Mix(savepoint=0.3, rollback=0.2))
    work(shop)
    assert not shop.caught_up().missing
    assert connector.stop() == 0


def work(shop: Shop, transactions: int = 3) -> None:
    for _ in range(transactions):
        shop.writers[0].transaction(3, rollback=False)


def goes_on(shop: Shop) -> None:
    """After the recovery: it starts, publishes what is new, and all that ever was is there once."""
    connector = shop.start()
    work(shop, 1)
    right(shop)
    assert connector.stop() == 0


def slot_dropped(shop: Shop) -> None:
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    work(shop)


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


def position_ahead(shop: Shop) -> None:
    """As after a restore that gave no new timeline."""
    work(shop)
    topic = shop.settings["kafka"]["offsets_topic"]
    good = to_stored(stored_positions(shop.kafka.bootstrap, shop.name, topic)[-1])
    far = int(shop.execute("SELECT pg_current_wal_lsn() - '0/0'")[0][0]) + 2**32
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    producer.produce(topic, json.dumps({**good, "lsn": format_lsn(far)}), shop.name.encode())
    assert producer.flush(10) == 0


def offsets_deleted(shop: Shop) -> None:
    """With all that was known of the position, and the ledger too."""
    work(shop)
    topic = shop.settings["kafka"]["offsets_topic"]
    admin = shop.kafka.admin()
    for each in admin.delete_topics([topic, f"{topic}-ledger"]).values():
        each.result(20)
    gone = {topic, f"{topic}-ledger"}
    wait_until(lambda: gone.isdisjoint(admin.list_topics(timeout=10).topics), what="the topics to go")


# Row of the matrix, what happens while the pipeline is stopped, what a start ends with.
FAULTS: list[tuple[int, Callable[[Shop], None], str]] = [
    (20, slot_dropped, "SlotMissing"),
    (22, slot_advanced, "SlotAhead"),
    (23, publication_made_anew, "PublicationBroken"),
    (24, table_taken_out, "PublicationBroken"),
    (11, position_ahead, "PositionAhead"),
    (10, offsets_deleted, "SlotUnclaimed"),
]


def test_one_loss_after_another(shop: Shop) -> None:
    """A plan changes nothing; it is refused while the pipeline runs or is well; then each is recovered from."""
    shop.configure(source={"start": "beginning"}, kafka={"offsets_topic": f"{shop.name}.offsets"})
    ran_before(shop)
    assert plan(shop)["case"] is None
    assert "nothing to recover" in refused(shop, "ConfigError")
    for row, fault, code in FAULTS:
        before = len(shop.writers[0].ledger)
        fault(shop)
        missed = len(shop.writers[0].ledger) - before
        if fault is slot_advanced:
            slot, seen = shop.confirmed_lsn(), len(shop.published())
            told = plan(shop)
            assert (told["missed"], told["undecided"]) == (missed, 0), told
            assert (shop.confirmed_lsn(), len(shop.published())) == (slot, seen)
        done = apply(shop)
        assert (done["case"], done["missed"]) == (code, missed), (row, done)
        assert done["published"] + done["dead_letters"] == missed, (row, done)
        right(shop)
    connector = shop.start()
    assert "is running" in refused(shop, "ConfigError", "--force")
    work(shop, 1)
    right(shop)
    assert connector.stop() == 0


def test_killed_at_each_step(shop: Shop) -> None:
    """Run again and again, each time killed a little later; until it is complete, a start refuses."""
    shop.configure(limits={"batch_records": 5}, source={"order_by": ["created_at", "id"]})
    ran_before(shop)
    slot_dropped(shop)
    work(shop, 10)
    # Positions without rows are stored when it is begun, when the slot is there, and at the end.
    points = (
        killpoint.SLOT_INTENDED,
        killpoint.SLOT_CREATED,
        f"{killpoint.TABLE_ROWS_READ}:2",
        f"{killpoint.AFTER_PRODUCE}:4",
        f"{killpoint.AFTER_COMMIT}:2",
    )
    for point in points:
        killed = recover(shop, "apply", "--yes", kill=point)
        assert killed.returncode == -9, (point, killed.stderr)
    shop.start("--adopt", wait=False).failed("RecoveryUnfinished")
    told = plan(shop)
    assert told["unfinished"]
    assert 0 < told["missed"] < 39, "some were published before"
    assert recover(shop, "apply", "--yes", kill=f"{killpoint.IDLE_STORED}:3").returncode == -9
    goes_on(shop)


def passed_all(shop: Shop) -> None:
    """Waits until the ledger knows that every row of now was passed."""
    last = int(shop.execute("SELECT max(xmin::text::bigint) FROM outbox")[0][0])

    def noted() -> bool:
        shop.execute("SELECT pg_current_xact_id()")
        found = entries(shop)
        return bool(found and found[-1].passed and Snapshot.parse(found[-1].passed).xmin > last)

    wait_until(noted, 60, what="the ledger to have passed all rows")


def note_long_ago(shop: Shop, *minutes: int) -> None:
    """Entries of the ledger as if the topic had been as it is now, so long ago, where the pipeline first was."""
    admin = shop.kafka.admin()
    places = {TopicPartition(shop.topic, number): OffsetSpec.latest() for number in range(3)}
    ends = {place.partition: found.result(10).offset for place, found in admin.list_offsets(places).items()}
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    # What was noted meanwhile has lower ends, and a later time: as if the topic had been made anew.
    for early in entries(shop):
        producer.produce("tailrace-offsets-ledger", None, ledger.key(kafka_options(load_pipeline(shop.file)), early))
    for ago in minutes:
        at_ms = time.time_ns() // 1_000_000 - ago * 60_000
        entry = Entry(replace(shop.positions()[0], at_ms=at_ms), at_ms, {shop.topic: ends})
        producer.produce("tailrace-offsets-ledger", json.dumps(entry.to_json()), f"{shop.name}/{ago} min ago")
    assert producer.flush(10) == 0


def test_the_ledger_knows_what_was_passed(shop: Shop) -> None:
    """Rows from before the first start are not published by a recovery either: the ledger's snapshot tells. Topics are
    read from where they ended a while ago; but a row that was updated since looks new, and makes them be read whole.
    """
    older = shop.insert(good(1), key="older")
    connector = shop.start()
    shop.writer()
    work(shop)
    assert not shop.caught_up().missing
    shop.execute("UPDATE outbox SET created_at = now() - interval '40 min'")
    note_long_ago(shop, 20, 5)
    work(shop, 1)
    passed_all(shop)
    assert connector.stop() == 0
    slot_dropped(shop)
    told = plan(shop)
    assert (told["missed"], told["left_out"]["passed"], told["undecided"]) == (9, 13, 0), told
    assert not told["read_whole_topics"], entries(shop)
    published = shop.writers[0].ledger[0].id
    shop.execute("UPDATE outbox SET aggregateid = aggregateid WHERE id = %s", published)
    told = plan(shop)
    assert (told["missed"], told["left_out"]["published"], told["undecided"]) == (9, 1, 0), told
    assert told["read_whole_topics"]
    apply(shop)
    connector = shop.start()
    right(shop)
    assert connector.stop() == 0
    assert older not in {seen.id for seen in shop.published()}


def test_an_id_of_another_pipeline_does_not_stand_for_a_missed_row(shop: Shop) -> None:
    """Pipelines share topics, and sequences count from 1 everywhere: the row is neither left out nor guessed."""
    shop.configure(source={"start": "beginning"})
    ran_before(shop)
    slot_dropped(shop)
    missed = shop.insert(good(1), key="mine")
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    said = {"id": missed, "type": "OrderPlaced", "position": "0/1:1", "timestamp": "1"}
    producer.produce(shop.topic, good(2), b"of another", headers=list(said.items()))
    assert producer.flush(30) == 0
    told = plan(shop)
    assert (told["missed"], told["undecided"]) == (9, 1), told
    assert missed in refused(shop, "RecoveryUncertain")
    assert shop.confirmed_lsn() is None, "nothing was changed"


def test_a_topic_that_is_gone_vouches_for_nothing(shop: Shop) -> None:
    """What was published is not published again because its topic was deleted."""
    shop.configure(source={"start": "beginning"})
    connector = shop.start()
    shop.writer()
    work(shop)
    assert not shop.caught_up().missing

    def noted() -> bool:
        work(shop, 1)
        return any(sum(each.offsets.get(shop.topic, {}).values()) for each in entries(shop))

    wait_until(noted, 60, what="the ledger to name the topic")
    assert connector.stop() == 0
    slot_dropped(shop)
    shop.execute("UPDATE outbox SET payload = payload")
    assert plan(shop)["undecided"] == 0
    admin = shop.kafka.admin()
    admin.delete_topics([shop.topic])[shop.topic].result(20)
    wait_until(lambda: shop.topic not in admin.list_topics(timeout=10).topics, 60, what="the end of the topic")
    assert plan(shop)["undecided"] > 0
    refused(shop, "RecoveryUncertain")
    # A start that fails makes the topic anew; it vouches for nothing all the same.
    shop.start(wait=False).failed("SlotMissing")
    refused(shop, "RecoveryUncertain")


def test_what_topics_no_longer_keep_is_not_guessed(shop: Shop) -> None:
    """No ledger, no place in the log, and the first records are deleted: a person must say since when."""
    topic = f"{shop.name}.offsets"
    shop.configure(source={"start": "beginning"}, kafka={"offsets_topic": topic})
    ran_before(shop)
    work(shop, 1)
    offsets_deleted(shop)
    places = [TopicPartition(shop.topic, number, -1) for number in range(3)]  # -1: all of it
    admin = shop.kafka.admin()
    for each in admin.delete_records(places).values():
        each.result(30)
    told = plan(shop)
    assert told["undecided"] > 0, told
    assert "--since" in refused(shop, "RecoveryUncertain")
    assert shop.confirmed_lsn() is not None, "nothing was changed"


def test_parked_keys_wait_on(parking: Shop) -> None:
    """A missed event of a parked key goes behind the others that wait, and not out. One that its topic refuses for good
    is set aside, and the others go on.
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


def test_by_itself(shop: Shop) -> None:
    """With `on_log_loss: recover` a start recovers; but not from what may be a mistake in the settings."""
    shop.configure(source={"on_log_loss": "recover", "start": "beginning"})
    ran_before(shop)
    slot_dropped(shop)
    shop.start(kill=f"{killpoint.AFTER_COMMIT}:1", wait=False).ended()
    connector = shop.start()
    assert '"recovered"' in connector.log
    work(shop, 1)
    right(shop)
    # While it runs, too.
    shop.execute(f"DROP PUBLICATION {shop.slot}")
    work(shop, 1)
    wait_until(lambda: connector.log.count('"recovered"') == 2 or not connector.running, 90, what="a second recovery")
    right(shop)
    assert connector.stop() == 0
    shop.configure(source={"table": "public.orders"})
    mistaken = shop.start(wait=False)
    mistaken.failed("PublicationBroken")
    assert '"recovering"' not in mistaken.log


@pytest.fixture(scope="module")
def own() -> Iterator[PostgresServer]:
    """A server to be taken back in time; it keeps next to no WAL for slots."""
    settings = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "48MB", "min_wal_size": "32MB"}
    with PostgresServer("16", source=Source.LOCAL, settings={**settings, "restore_command": "false"}) as server:
        yield server


@pytest.fixture
def own_shop(own: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    shop = open_shop(own, kafka, tmp_path)
    yield shop
    close_shop(shop)


def test_invalidated(own_shop: Shop) -> None:
    """Row 21."""
    shop = own_shop
    ran_before(shop)
    work(shop)

    def lost() -> bool:
        shop.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000))")
        shop.execute("SELECT pg_switch_wal()")
        shop.execute("CHECKPOINT")
        status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
        return shop.execute(status, shop.slot) == [("lost",)]

    wait_until(lost, 60, what="the loss of the slot")
    shown = report(shop, "plan")
    assert "SlotLost" in shown
    assert re.search(r"\b9  missed: to be published", shown), shown
    assert f"drop the slot {shop.slot}" in shown
    with pytest.raises(ConfigError, match="nobody to ask"):
        report(shop, "apply")
    shown = report(shop, "apply", "--yes")
    assert re.search(r"\b9 events published, 0 dead letters", shown), shown
    goes_on(shop)


def test_restored_from_a_backup(own_shop: Shop, own: PostgresServer, tmp_path: Path) -> None:
    """Row 34. The server goes back, on a new timeline: numbers of transactions that the ledger has seen come again."""
    shop = own_shop
    ran_before(shop)
    own.stop()
    backup = tmp_path / "backup"
    subprocess.run(["cp", "-a", own.data_dir, backup], check=True)
    own.start()
    connector = shop.start()
    work(shop)
    assert not shop.caught_up().missing
    passed_all(shop)
    assert connector.stop() == 0
    own.stop()
    shutil.rmtree(own.data_dir)
    subprocess.run(["cp", "-a", backup, own.data_dir], check=True)
    subprocess.run(["cp", "-a", own.data_dir / "PG_VERSION", own.data_dir / "recovery.signal"], check=True)
    own.start()
    wait_until(lambda: shop.execute("SELECT pg_is_in_recovery()") == [(False,)], 60, what="the new timeline")
    work(shop)
    newest = int(shop.execute("SELECT max(xmin::text::bigint) FROM outbox")[0][0])
    passed = Snapshot.parse(entries(shop)[-1].passed).xmin
    assert newest < passed, "numbers do not come again: nothing is tested here"
    wait_until(lambda: int(shop.execute("SELECT pg_current_xact_id()::text")[0][0]) > passed, what="newer transactions")
    shop.start(wait=False).failed("WrongLog")
    # A sequence that went back gives ids out once more: such a row is another event, and must not pass for the old one.
    gone = next(entry.id for entry in shop.writers[0].ledger if entry.id not in shop.in_outbox())
    row = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (%s, 'order', 'k', %s, %s)"
    shop.execute(row, gone, "OrderPlaced", good(99))
    assert "ids" in refused(shop, "RecoveryUncertain")
    shop.execute("DELETE FROM outbox WHERE id = %s", gone)
    apply(shop)
    goes_on(shop)
