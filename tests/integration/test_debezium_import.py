"""A real Debezium 3 on Kafka Connect, compared by a shadow and taken over, by the oracle's verdict.

`test_debezium_takeover.py` has the states that a crash rarely leaves.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from helpers.command import Tailrace
from helpers.debezium import Debezium, OutboxConnector, mongo_config, write_config
from helpers.shop import Shop
from helpers.users import Users
from tailrace.debezium_import.shadow import PREFIX
from tailrace.testkit.oracle import OracleVerdict, WriteOutcome, WrittenEvent
from tailrace.testkit.stack import KafkaBroker, wait_until
from tailrace.testkit.topic_reader import RecordReader, consumed_records
from tailrace.testkit.workload.users import OUTBOX
from tailrace.testkit.workload.writer import Mix

pytestmark = pytest.mark.slow
"""A worker of Kafka Connect takes a minute of processor time to start and to compile."""
VALID = Mix(invalid=0)
"""Debezium validates nothing: an invalid event is published like the others."""


@pytest.fixture(scope="module")
def debezium(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Debezium]:
    """A worker that commits offsets rarely, so that they lie behind what is published."""
    folder = tmp_path_factory.mktemp("debezium")
    with Debezium(kafka, folder, settings={"offset.flush.interval.ms": "3000"}) as worker:
        yield worker


def write_at_once(shop: Shop, count: int, keys: int = 500) -> None:
    """Writes that many events in one transaction, and notes them for the oracle."""
    rows = shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) SELECT gen_random_uuid(), 'order', "
        "'at-once-' || number %% %s, 'OrderPlaced', jsonb_build_object('order', number) "
        "FROM generate_series(0, %s - 1) number ORDER BY number RETURNING id, aggregateid, payload -> 'order'",
        keys, count,
    )  # fmt: skip
    shop.writers[0].written += [
        WrittenEvent(str(event), key, number // keys, True, WriteOutcome.COMMITTED) for event, key, number in rows
    ]


def copy_at_once(shop: Shop, count: int, keys: int = 500) -> None:
    """Writes that many events with one COPY, whose rows share LSNs, and notes them for the oracle."""
    events = [
        WrittenEvent(str(uuid.uuid4()), f"at-once-{number % keys}", number // keys, True, WriteOutcome.COMMITTED)
        for number in range(count)
    ]
    shop.copy(events)
    shop.writers[0].written += events


def goes_on(shop: Shop) -> OracleVerdict:
    """Starts the pipeline after a takeover, and asks the oracle."""
    connector = shop.start()
    for writer in shop.writers:
        writer.stop()
    verdict = shop.caught_up()
    assert verdict.ok, verdict
    assert verdict.committed == verdict.published
    assert connector.stop() == 0
    return verdict


def test_compared_beside_a_running_connector_and_taken_over_after_a_kill(
    kafka: KafkaBroker, debezium: Debezium, shop: Shop, tailrace: Tailrace
) -> None:
    connector = OutboxConnector(debezium, shop)
    connector.start()
    kafka.create_topic(f"{PREFIX}{shop.name}.left-by-a-killed-run", 1, {})
    writer = shop.writer(mix=VALID)
    writer.start(rate=100)
    connector.has_published(50)
    wait_until(lambda: debezium.offset(shop.name), 60, what="an offset")
    shadow = tailrace(*connector.command("--shadow", "--for", 2, "--connect", debezium.url))["shadow"]
    assert shadow["verdict"] == "same", shadow
    assert shadow["events"] == shadow["same"] > 0
    assert not shadow["differences"]
    assert {"position", "timestamp", "tailrace.pipeline"} <= set(shadow["added_headers"])
    assert shadow["cleaned"] == [f"{PREFIX}{shop.name}.left-by-a-killed-run"]
    assert not [topic for topic in kafka.admin().list_topics(timeout=10).topics if topic.startswith(PREFIX)]
    assert "--take-over" in shadow["cut_over"][1]
    take_over = connector.command("--take-over", "--connect", debezium.url, "--wait", 0)
    assert "is RUNNING" in tailrace(*take_over, code=2)["what"]
    debezium.pause(shop.name)
    assert "is PAUSED" in tailrace(*take_over, code=2)["what"]
    assert "in use" in tailrace(*connector.command("--take-over", "--stopped", "--wait", 0), code=2)["what"]
    debezium.resume(shop.name)
    before = len(shop.published())
    connector.has_published(before + 100)
    debezium.kill()
    assert "does not say" in tailrace(*take_over, code=2)["what"]
    found = tailrace(*connector.command("--take-over", "--stopped"))["takeover"]
    assert found["published_beyond_offset"] > 0
    verdict = goes_on(shop)
    # Rows that Debezium has published are those from before the pipeline's first start.
    verified = tailrace("verify", shop.file)
    assert verified["clean"], verified
    assert verified["published"] + verified["before_start"] == verdict.committed
    debezium.start()


@pytest.mark.slow
@pytest.mark.parametrize("exactly_once", [True, False])
def test_killed_inside_a_large_transaction(
    kafka: KafkaBroker, tmp_path: Path, shop: Shop, tailrace: Tailrace, exactly_once: bool
) -> None:
    with Debezium(kafka, tmp_path / "connect", exactly_once=exactly_once) as debezium:
        connector = OutboxConnector(debezium, shop)
        connector.start()
        writer = shop.writer(mix=VALID)
        writer.transaction(10, rollback=False)
        connector.has_published(10)
        wait_until(lambda: debezium.offset(shop.name), 120, what="an offset")
        # With exactly-once support, the offset ends between two rows of a COPY.
        (copy_at_once if exactly_once else write_at_once)(shop, 40_000)
        with RecordReader(kafka.bootstrap, [shop.topic]) as reader:
            wait_until(lambda: len(reader.more()) > 500, 120, what="a part of the transaction")
        debezium.kill()
    writer.transaction(5, rollback=False)
    found = tailrace(*connector.command("--take-over", "--stopped"))["takeover"]
    published = len({each.id for each in shop.published()})
    assert 10 < published < 40_000, "the kill came too late"
    assert found["pending"] == 40_015 - published
    goes_on(shop)


@pytest.mark.slow
def test_a_connector_that_is_far_behind_and_stopped(debezium: Debezium, shop: Shop, tailrace: Tailrace) -> None:
    connector = OutboxConnector(debezium, shop)
    connector.start()
    writer = shop.writer(mix=VALID)
    writer.transaction(10, rollback=False)
    connector.has_published(10)
    debezium.stop_connector(shop.name)
    write_at_once(shop, 100_000)
    found = tailrace(*connector.command("--take-over", "--connect", debezium.url))["takeover"]
    assert (found["completed"], found["pending"]) == (0, 100_000)
    goes_on(shop)


@pytest.mark.slow
def test_a_connector_that_has_failed(
    kafka: KafkaBroker, debezium: Debezium, shop: Shop, tailrace: Tailrace, tmp_path: Path
) -> None:
    connector = OutboxConnector(debezium, shop)
    connector.start()
    writer = shop.writer(mix=VALID)
    writer.transaction(10, rollback=False)
    connector.has_published(10)
    wait_until(lambda: debezium.offset(shop.name), 60, what="an offset")
    limits(kafka, shop.topic, "max.message.bytes", "100")
    writer.transaction(5, rollback=False)
    wait_until(lambda: "FAILED" in debezium.state(shop.name), 120, what="the failure of the task")
    limits(kafka, shop.topic, "max.message.bytes", "1000000")
    refused = tailrace(*connector.command("--take-over", "--connect", debezium.url), code=2)
    assert refused["what"].endswith("is RUNNING, its task 0 is FAILED")
    assert "a failed one may be restarted" in refused["why"]
    # Its slot is not in use, but that says nothing about a failed connector.
    refused = tailrace(*connector.command("--take-over"), code=2)
    assert "not known whether the connector is stopped" in refused["what"]
    with_other_name = write_config(tmp_path / "other.json", f"{shop.name}-other", connector.config)
    other = ["import", "debezium", with_other_name, *connector.command()[3:], "--take-over"]
    refused = tailrace(*other, "--connect", debezium.url, code=2)
    assert "has no connector" in refused["what"]
    debezium.stop_connector(shop.name)
    found = tailrace(*connector.command("--take-over", "--connect", debezium.url))["takeover"]
    assert found["completed"] + found["pending"] == 5
    goes_on(shop)


def limits(kafka: KafkaBroker, topic: str, setting: str, value: str) -> None:
    admin = kafka.admin()
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)


@pytest.mark.slow
def test_mongodb_compared_and_taken_over_after_a_kill(
    kafka: KafkaBroker, tmp_path: Path, users: Users, tailrace: Tailrace
) -> None:
    router = {
        "transforms.outbox.collection.field.event.id": "event_id",
        "transforms.outbox.collection.field.event.key": "partition_key",
        "transforms.outbox.collection.field.event.type": "event_type",
        "transforms.outbox.route.by.field": "entity_type",
        "transforms.outbox.route.topic.replacement": users.topic,
        "transforms.outbox.collection.expand.json.payload": "true",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "collection.include.list": f"{users.database}.{OUTBOX}",
    }
    config = mongo_config(users.mongo.uri, users.database, users.name) | router
    file = write_config(users.folder / "connector.json", users.name, config)
    users.file.unlink()
    with Debezium(kafka, tmp_path / "connect", settings={"offset.flush.interval.ms": "3000"}) as debezium:
        command = ["import", "debezium", file, "--file", users.file, "--bootstrap", kafka.bootstrap]
        command += ["--offsets", debezium.offsets_topic]
        debezium.put(users.name, config)
        writer = users.writer(mix=VALID)
        with RecordReader(kafka.bootstrap, [users.topic]) as reader:

            def found() -> set[str]:
                return {each.id for each in consumed_records(reader.more())}

            # Nothing shows when the stream begins, and events before it are not Debezium's.
            wait_until(lambda: writer.transaction(1, rollback=False) and found(), 120, what="the first event")
            wait_until(lambda: writer.written[-1].id in found(), 120, what="the last one")
            writer.written = [event for event in writer.written if event.id in found()]
            writer.start(rate=50)
            wait_until(lambda: len(reader.more()) > 50, 120, what="events")
            wait_until(lambda: debezium.offset(users.name), 60, what="an offset")
            shadow = tailrace(*command, "--shadow", "--for", 2)["shadow"]
            assert shadow["verdict"] == "same", shadow
            refused = tailrace(*command, "--take-over", code=2)
            assert "--connect" in refused["remedy"]
            before = len(reader.more())
            wait_until(lambda: len(reader.more()) > before + 50, 120, what="more events")
        debezium.kill()
    taken_over = tailrace(*command, "--take-over", "--stopped")["takeover"]
    assert taken_over["published_beyond_offset"] > 0
    connector = users.start()
    writer.stop()
    verdict = users.caught_up()
    assert verdict.ok, verdict
    assert connector.stop() == 0
