"""Rows 21 and 34 of the fault matrix, and the evidence of a recovery: position history, topics, fingerprints."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from helpers.parking import good
from helpers.recovery import (
    apply,
    entries,
    goes_on,
    offsets_deleted,
    passed_all,
    plan,
    ran_before,
    refused,
    report,
    right,
    slot_dropped,
    work,
)
from helpers.shop import Shop, close_shop, open_shop
from tailrace.config.load import load_pipeline
from tailrace.errors import ConfigError
from tailrace.sources.postgres.snapshot import Snapshot
from tailrace.state import position_history
from tailrace.state.position_history import PositionEntry
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until
from tailrace.worker.options import kafka_options


def note_long_ago(shop: Shop, *minutes: int) -> None:
    """Rewrites the position history as if the topic had been like this long ago, at the pipeline's first position."""
    admin = shop.kafka.admin()
    places = {TopicPartition(shop.topic, number): OffsetSpec.latest() for number in range(3)}
    ends = {place.partition: found.result(10).offset for place, found in admin.list_offsets(places).items()}
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    # Entries written meanwhile have lower ends and a later time, as if the topic had been created again.
    for early in entries(shop):
        producer.produce(
            "tailrace-offsets-ledger", None, position_history.key(kafka_options(load_pipeline(shop.file)), early)
        )
    for ago in minutes:
        at_ms = time.time_ns() // 1_000_000 - ago * 60_000
        entry = PositionEntry(replace(shop.positions()[0], at_ms=at_ms), at_ms, {shop.topic: ends})
        producer.produce("tailrace-offsets-ledger", json.dumps(entry.to_json()), f"{shop.name}/{ago} min ago")
    assert producer.flush(10) == 0


@pytest.mark.slow
def test_the_position_history_shows_which_rows_were_passed(shop: Shop) -> None:
    """A recovery does not publish rows from before the first start: the snapshot of the history shows them. Topics are
    read from a recent offset, but a row that was updated since looks new, and causes them to be read whole.
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
    result = plan(shop)
    assert (result["missed"], result["left_out"]["passed"], result["undecided"]) == (9, 13, 0), result
    assert not result["read_whole_topics"], entries(shop)
    published = shop.writers[0].written[0].id
    shop.execute("UPDATE outbox SET aggregateid = aggregateid WHERE id = %s", published)
    result = plan(shop)
    assert (result["missed"], result["left_out"]["published"], result["undecided"]) == (9, 1, 0), result
    assert result["read_whole_topics"]
    apply(shop)
    connector = shop.start()
    right(shop)
    assert connector.stop() == 0
    assert older not in {seen.id for seen in shop.published()}


def test_a_record_of_another_pipeline_does_not_hide_a_missed_row(shop: Shop) -> None:
    """Pipelines share topics and count ids from 1: the row is neither left out nor guessed."""
    shop.configure(source={"start": "beginning"})
    ran_before(shop)
    slot_dropped(shop)
    missed = shop.insert(good(1), key="mine")
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    said = {"id": missed, "type": "OrderPlaced", "position": "0/1:1", "timestamp": "1"}
    producer.produce(shop.topic, good(2), b"of another", headers=list(said.items()))
    assert producer.flush(30) == 0
    result = plan(shop)
    assert (result["missed"], result["undecided"]) == (9, 1), result
    assert missed in refused(shop, "RecoveryUncertain")
    assert shop.confirmed_lsn() is None, "nothing was changed"


@pytest.mark.slow
def test_a_deleted_topic_proves_nothing(shop: Shop) -> None:
    """Published events are not published again because their topic was deleted."""
    shop.configure(source={"start": "beginning"})
    connector = shop.start()
    shop.writer()
    work(shop)
    assert not shop.caught_up().missing

    def noted() -> bool:
        work(shop, 1)
        return any(sum(each.offsets.get(shop.topic, {}).values()) for each in entries(shop))

    wait_until(noted, 60, what="the position history to name the topic")
    assert connector.stop() == 0
    slot_dropped(shop)
    shop.execute("UPDATE outbox SET payload = payload")
    assert plan(shop)["undecided"] == 0
    admin = shop.kafka.admin()
    admin.delete_topics([shop.topic])[shop.topic].result(20)
    wait_until(lambda: shop.topic not in admin.list_topics(timeout=10).topics, 60, what="the end of the topic")
    assert plan(shop)["undecided"] > 0
    refused(shop, "RecoveryUncertain")
    # A failed start creates the topic again, which still proves nothing.
    shop.start(wait=False).failed("SlotMissing")
    refused(shop, "RecoveryUncertain")


def test_rows_whose_records_may_be_deleted_are_undecided(shop: Shop) -> None:
    """No history, no position, and the first records are deleted: a person must give --since."""
    topic = f"{shop.name}.offsets"
    shop.configure(source={"start": "beginning"}, kafka={"offsets_topic": topic})
    ran_before(shop)
    work(shop, 1)
    offsets_deleted(shop)
    places = [TopicPartition(shop.topic, number, -1) for number in range(3)]  # -1: all of it
    admin = shop.kafka.admin()
    for each in admin.delete_records(places).values():
        each.result(30)
    result = plan(shop)
    assert result["undecided"] > 0, result
    assert "--since" in refused(shop, "RecoveryUncertain")
    assert shop.confirmed_lsn() is not None, "nothing was changed"


@pytest.fixture(scope="module")
def own() -> Iterator[PostgresServer]:
    """A server that can be restored; it keeps almost no WAL for slots."""
    settings = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "48MB", "min_wal_size": "32MB"}
    with PostgresServer("16", choice=ServerChoice.LOCAL, settings={**settings, "restore_command": "false"}) as server:
        yield server


@pytest.fixture
def own_shop(own: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    shop = open_shop(own, kafka, tmp_path)
    yield shop
    close_shop(shop)


@pytest.mark.slow
def test_an_invalidated_slot(own_shop: Shop) -> None:
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
    assert re.search(r"\b9  missed: will be published", shown), shown
    assert f"drop the slot {shop.slot}" in shown
    with pytest.raises(ConfigError, match="no terminal to confirm"):
        report(shop, "apply")
    shown = report(shop, "apply", "--yes")
    assert re.search(r"\b9 events published, 0 dead letters", shown), shown
    goes_on(shop)


@pytest.mark.slow
def test_a_database_restored_from_a_backup(own_shop: Shop, own: PostgresServer, tmp_path: Path) -> None:
    """Row 34. The server is restored, on a new timeline: transaction ids of the history are assigned again."""
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
    # A restored sequence assigns ids again: such a row is another event, and must not be taken for the old one.
    gone = next(entry.id for entry in shop.writers[0].written if entry.id not in shop.in_outbox())
    row = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (%s, 'order', 'k', %s, %s)"
    shop.execute(row, gone, "OrderPlaced", good(99))
    assert "ids" in refused(shop, "RecoveryUncertain")
    shop.execute("DELETE FROM outbox WHERE id = %s", gone)
    apply(shop)
    goes_on(shop)
