"""Pipelines that share an outbox or a topic: each finds its own records, also after its log was lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from helpers.parking import good
from helpers.recovery import apply, entries, plan, refused
from helpers.shop import Shop, close_shop, open_shop
from tailrace.cli import main
from tailrace.config.load import load_pipeline
from tailrace.state import known_topics
from tailrace.state.offsets import read_keys
from tailrace.testkit.oracle import ConsumedRecord
from tailrace.testkit.stack import KafkaBroker, PostgresServer, wait_until
from tailrace.testkit.topic_reader import consumed_records, header, read_all
from tailrace.worker.options import kafka_options

Verify = Callable[..., dict[str, Any]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, Any]]]:
    """Runs a command with --json; returns its lines of output."""

    def run(name: str, shop: Shop, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([name, str(shop.file), *arguments, "--json"])
        printed = capsys.readouterr()
        assert caught.value.code == code, printed
        text = printed.out or printed.err
        return [json.loads(text)] if name != "tail" else [json.loads(line) for line in text.splitlines()]

    return run


def by_template(shop: Shop, template: str, **source: Any) -> Shop:
    shop.settings["topics"] = {"template": template, "partitions": 1}
    shop.configure(source=source)
    return shop


def second(shop: Shop, suffix: str = "_v2") -> Shop:
    """Another pipeline on the same outbox."""
    other = Shop(shop.postgres, shop.kafka, shop.folder / "second", shop.name + suffix, shop.dsn)
    other.folder.mkdir()
    other.settings = {**shop.settings, "pipeline": other.name, "schemas": {"folder": str(shop.folder / "schemas")}}
    other.configure(kafka={"dead_letter_topic": other.letters})
    return other


def read(shop: Shop, topic: str) -> list[ConsumedRecord]:
    if topic not in shop.kafka.admin().list_topics(timeout=10).topics:
        return []
    return consumed_records(read_all(shop.kafka.bootstrap, [topic]))


def on(shop: Shop, topic: str, count: int) -> list[ConsumedRecord]:
    wait_until(lambda: len(read(shop, topic)) >= count, 60, what=f"{count} records on {topic}")
    found = read(shop, topic)
    assert len(found) == count, found
    return found


def insert(shop: Shop, count: int) -> list[str]:
    return [shop.insert(good(number), key=f"k{number}") for number in range(1, count + 1)]


def noted(shop: Shop, topic: str) -> None:
    """Waits until the position history names the topic."""
    wait_until(lambda: any(topic in each.offsets for each in entries(shop)), 60, what="the position history")


def remove_history(shop: Shop) -> None:
    topic, admin = f"{shop.settings['kafka']['offsets_topic']}-ledger", shop.kafka.admin()
    admin.delete_topics([topic])[topic].result(20)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, 60, what="the end of the history")


def forget_rules(shop: Shop) -> None:
    options = kafka_options(load_pipeline(shop.file))
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    for key in read_keys(options, None):
        if known_topics.SUFFIX.encode() in key:
            producer.produce(options.offsets_topic, None, key)
    assert producer.flush(30) == 0


@pytest.mark.slow
def test_two_pipelines_on_one_outbox(shop: Shop, command: Callable[..., list[dict[str, Any]]]) -> None:
    """The template of one also matches the topics of the other; its records do not hide missed rows."""
    one, two = f"{shop.name}.order", f"{shop.name}.v2.order"
    by_template(shop, f"{shop.name}.{{aggregate}}")
    other = by_template(second(shop), f"{shop.name}.v2.{{aggregate}}")
    connectors = [shop.start(), other.start()]
    try:
        insert(shop, 3)
        on(shop, one, 3)
        on(shop, two, 3)
        for each in (shop, other):
            (result,) = command("verify", each)
            assert (result["published"], result["duplicated"]) == (3, 0), result
        seen = command("tail", shop, "--from-beginning", "--limit", "3")
        assert {each["topic"] for each in seen} == {one}
        assert connectors[0].stop() == 0
        shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
        insert(shop, 10)
        on(shop, two, 13)
        assert apply(shop)["published"] == 10
        assert len({each.id for each in on(shop, one, 13)}) == 13
        connectors[0] = shop.start()
        for each in (shop, other):
            (result,) = command("verify", each)
            assert (result["published"], result["duplicated"]) == (13, 0), result
    finally:
        other.close()


def test_another_template_after_all_state_is_lost(shop: Shop) -> None:
    """Neither position nor history: today's topics only show what was committed since they were first written."""
    shop.configure(kafka={"offsets_topic": f"{shop.name}.offsets"})
    for number, template in enumerate((f"{shop.name}.{{aggregate}}", f"{shop.name}-new.{{aggregate}}")):
        by_template(shop, template, start="beginning")
        connector = shop.start()
        insert(shop, 3)
        on(shop, template.format(aggregate="order"), 3)
        if not number:
            noted(shop, f"{shop.name}.order")
        assert connector.stop() == 0
    insert(shop, 2)
    topics, admin = [f"{shop.name}.offsets", f"{shop.name}.offsets-ledger"], shop.kafka.admin()
    for each in admin.delete_topics(topics).values():
        each.result(20)
    wait_until(lambda: not {*topics} & {*admin.list_topics(timeout=10).topics}, 60, what="the end of the topics")
    shop.start(wait=False).failed("SlotUnclaimed")
    result = plan(shop)
    assert (result["missed"], result["left_out"]["published"], result["undecided"]) == (2, 3, 3), result
    refused(shop, "RecoveryUncertain")


def test_check_warns_of_a_pipeline_that_doubles_every_event(
    shop: Shop, command: Callable[..., list[dict[str, Any]]]
) -> None:
    """They share outbox and topics; also before the first start of the second one. Other topics are fine."""

    def warnings(of: Shop) -> list[str]:
        (result,) = command("check", of)
        return [each["found"] for each in result["checks"] if each["name"] == "other pipelines"]

    by_template(shop, f"{shop.name}.{{aggregate}}")
    connector = shop.start()
    other = by_template(second(shop), f"{shop.name}.v2.{{aggregate}}")
    assert (warnings(shop), warnings(other)) == ([], [])
    (found,) = warnings(by_template(other, f"{shop.name}.{{aggregate}}"))
    assert f"{shop.name} reads the same outbox" in found
    assert connector.stop() == 0


@pytest.fixture
def billing(postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Shop]:
    """A second shop, with a separate database."""
    (tmp_path / "billing").mkdir()
    shop = open_shop(postgres, kafka, tmp_path / "billing")
    yield shop
    close_shop(shop)


def numbered(shop: Shop, template: str) -> None:
    """Uses ids from 1, like a sequence."""
    by_template(shop, template, start="beginning")
    shop.execute("ALTER TABLE outbox ALTER COLUMN id DROP DEFAULT, ALTER COLUMN id TYPE text USING id::text")


def count(shop: Shop, *ids: int, key: str) -> None:
    for number in ids:
        shop.execute(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (%s, 'order', %s, %s, %s)",
            str(number), key, "OrderPlaced", good(1),
        )  # fmt: skip


@pytest.mark.slow
def test_two_databases_with_the_same_ids_share_a_topic(
    shop: Shop, billing: Shop, command: Callable[..., list[dict[str, Any]]]
) -> None:
    """One topic, the same ids and payloads: the header names the owner, else the key decides, or nothing."""
    topic = f"{shop.name}.shared.order"
    for each in (shop, billing):
        numbered(each, f"{shop.name}.shared.{{aggregate}}")
    connector = billing.start()
    count(billing, *range(1, 11), key="billing")
    on(shop, topic, 10)
    mine = shop.start()
    count(shop, *range(1, 6), key="shop")
    on(shop, topic, 15)
    assert mine.stop() == 0
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    count(shop, *range(6, 11), key="shop")
    (result,) = command("verify", shop)
    assert (result["published"], result["not_yet"]) == (5, 5), result
    assert apply(shop)["published"] == 5
    assert sorted(seen.id for seen in on(shop, topic, 20)) == sorted([str(n) for n in range(1, 11)] * 2)
    (result,) = command("verify", shop)
    assert (result["published"], result["missing"], result["duplicated"]) == (10, 0, 0), result
    # Records of an earlier version do not name their pipeline.
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    count(shop, 11, 12, key="shop")
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    for number, key in ((11, b"billing"), (12, b"shop")):
        said = {"id": str(number), "type": "OrderPlaced", "position": "FF/1:1", "timestamp": "1"}
        producer.produce(topic, good(1), key, headers=list(said.items()))
    assert producer.flush(30) == 0
    assert plan(shop)["undecided"] == 2, "another key, and a position that was never reached"
    refused(shop, "RecoveryUncertain")
    assert connector.stop() == 0


def test_a_replay_from_the_table_uses_only_its_own_positions(shop: Shop, billing: Shop) -> None:
    topic = f"{shop.name}.shared.order"
    for each in (shop, billing):
        numbered(each, f"{shop.name}.shared.{{aggregate}}")
    connectors = [billing.start()]
    count(billing, 1, 2, key="billing")
    on(shop, topic, 2)
    connectors.append(shop.start())
    count(shop, 1, 2, key="shop")
    on(shop, topic, 4)
    planned = shop.folder / "plan.json"
    for arguments in (
        ["plan", str(shop.file), "--from", "2h", "--from-table", "--output", str(planned)],
        ["apply", str(planned)],
    ):
        with pytest.raises(SystemExit) as caught:
            main(["replay", *arguments])
        assert caught.value.code == 0
    on(shop, topic, 6)
    found = [message for message in read_all(shop.kafka.bootstrap, [topic]) if message.key() == b"shop"]
    places: dict[str, set[str]] = {}
    for message in found:
        places.setdefault(header(message, "id"), set()).add(header(message, "position"))
    assert len(found) == 4
    assert all(len(each) == 1 for each in places.values()), places
    for each in connectors:
        assert each.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("history", [True, False])
def test_events_published_under_an_earlier_template_count(
    shop: Shop, command: Callable[..., list[dict[str, Any]]], *, history: bool
) -> None:
    """Also if the position history is gone."""
    topic = f"{shop.name}.old.order"
    shop.configure(kafka={"offsets_topic": f"{shop.name}.offsets"})
    by_template(shop, f"{shop.name}.old.{{aggregate}}", start="beginning")
    connector = shop.start()
    insert(shop, 5)
    on(shop, topic, 5)
    noted(shop, topic)
    assert connector.stop() == 0
    by_template(shop, f"{shop.name}-new.{{aggregate}}")
    connector = shop.start()
    insert(shop, 1)
    on(shop, f"{shop.name}-new.order", 1)
    assert connector.stop() == 0
    if not history:
        remove_history(shop)
    (result,) = command("verify", shop)
    assert (result["published"], result["missing"]) == (6, 0), result
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    missed = insert(shop, 2)
    assert plan(shop)["missed"] == 2
    if history:
        assert apply(shop)["published"] == 2
        return
    # An earlier version stored no rules.
    forget_rules(shop)
    refused(shop, "RecoveryUncertain")
    since = shop.execute("SELECT min(created_at)::text FROM outbox WHERE id = ANY(%s::uuid[])", missed)[0][0]
    assert apply(shop, "--since", since.replace(" ", "T"))["published"] == 2
    connector = shop.start()
    last = insert(shop, 1)
    assert last[0] in {seen.id for seen in on(shop, f"{shop.name}-new.order", 4)}
    noted(shop, f"{shop.name}-new.order")
    assert connector.stop() == 0
    forget_rules(shop)
    remove_history(shop)
    (result,) = command("verify", shop, code=1)
    assert (result["published"], result["missing"], result["undecided"]) == (4, 0, 5), result
