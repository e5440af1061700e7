"""Rows 50 and 51 of the fault matrix: a topic is deleted, rejects records or grows while a pipeline runs."""

from __future__ import annotations

import json

import pytest
from confluent_kafka.admin import NewPartitions

from faults.test_kafka_faults import read_only
from helpers.shop import Connector, Shop
from tailrace.cli import main
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all

VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'

# One transaction with an event for either topic.
BOTH = """
INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
SELECT gen_random_uuid(), 'order', 'k', unnest(ARRAY['OrderPlaced', 'OrderChanged']), %s
"""

# Checks the partitions as often as possible instead of twice a minute.
ATTENTIVE = """
from tailrace.kafka import topic_manager
topic_manager.RECOUNT_SECONDS = 0.0
from tailrace.cli import main
main()
"""


def attentive(shop: Shop) -> Connector:
    script = shop.folder / "attentive.py"
    script.write_text(ATTENTIVE)
    return shop.start(program=[str(script)])


def warnings(connector: Connector) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in connector.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "partitions changed"]


def grow(shop: Shop, topic: str, partitions: int) -> None:
    admin = shop.kafka.admin()
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(20)


def second_topic(shop: Shop) -> str:
    """Routes changed orders to a second topic, keyed by another column."""
    topic = f"{shop.name}.changes"
    spec = {
        "topic": topic,
        "match": {"type": "OrderChanged"},
        "key": "tenant",
        "priority": 1,
        "partitions": 2,
        "replication": 1,
    }
    (shop.folder / "topics" / "changes.yaml").write_text(json.dumps(spec))
    shop.execute("ALTER TABLE outbox ADD COLUMN tenant text DEFAULT 'eu-1'")
    return topic


def test_a_topic_that_grows_is_logged_once_and_the_pipeline_continues(shop: Shop) -> None:
    connector = attentive(shop)
    first = shop.insert(VALID)
    wait_until(lambda: [seen.id for seen in shop.published()] == [first], 60, what="the first event")
    assert warnings(connector) == []
    grow(shop, shop.topic, 6)
    connector.says('"partitions changed"')
    later = [shop.insert(VALID) for _ in range(3)]
    wait_until(lambda: {seen.id for seen in shop.published()} == {first, *later}, 60, what="the later events")
    (warning,) = warnings(connector)
    assert (warning["level"], warning["topic"], warning["before"], warning["now"]) == ("warning", shop.topic, 3, 6)
    assert "order of a key is not kept across the change" in str(warning["why"])
    assert connector.running


def test_check_finds_that_a_topic_has_grown(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.start().stop()
    grow(shop, shop.topic, 5)
    with pytest.raises(SystemExit):
        main(["check", str(shop.file), "--json"])
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    found = checks[f"topic {shop.topic}"]
    assert found["state"] == "WARN"
    assert "has 5 partitions, but its spec declares 3" in found["found"]
    assert "partitions: 5 in its spec" in found["remedy"]


def test_one_outbox_goes_into_two_topics(shop: Shop) -> None:
    topic = second_topic(shop)
    shop.start()
    placed, changed = shop.insert(VALID, key="k-1"), shop.insert(VALID, kind="OrderChanged", key="k-1")
    wait_until(lambda: [seen.id for seen in shop.published()] == [placed], 60, what="the placed order")
    wait_until(lambda: read_all(shop.kafka.bootstrap, [topic]), 60, what="the changed order")
    (record,) = read_all(shop.kafka.bootstrap, [topic])
    assert record.key() == b"eu-1"
    assert header(record, "id") == changed


def test_a_second_topic_that_is_deleted_stops_the_pipeline(shop: Shop) -> None:
    """The healthy topic of the same batch gets nothing either: a batch is one transaction."""
    topic = second_topic(shop)
    shop.configure(kafka={"settings": {"transaction.timeout.ms": 3000, "message.timeout.ms": 2000}})
    connector = shop.start()
    shop.insert(VALID, kind="OrderChanged")
    wait_until(lambda: read_all(shop.kafka.bootstrap, [topic]), 60, what="the changed order")
    admin = shop.kafka.admin()
    admin.delete_topics([topic])[topic].result(20)
    before = shop.positions()[-1]
    shop.execute(BOTH, VALID)
    connector.failed("TopicMissing")
    assert topic in connector.log
    assert shop.positions()[-1].progress == before.progress
    assert shop.published() == []
    # The next start creates the topic from its spec, and no event is lost.
    shop.start()
    wait_until(lambda: len(shop.published()) == 1, 60, what="the placed order")
    wait_until(lambda: len(read_all(shop.kafka.bootstrap, [topic])) == 1, 60, what="the changed order")


def test_rights_that_are_revoked_while_running_stop_the_pipeline(shop: Shop) -> None:
    topic = second_topic(shop)
    connector = shop.start()
    shop.insert(VALID, kind="OrderChanged")
    wait_until(lambda: read_all(shop.kafka.bootstrap, [topic]), 60, what="the changed order")
    with read_only(shop, topic):
        before = shop.positions()[-1]
        shop.execute(BOTH, VALID)
        connector.failed("TopicRefused")
        assert topic in connector.log
        assert shop.positions()[-1].progress == before.progress
        assert shop.published() == []
    shop.start()
    wait_until(lambda: len(shop.published()) == 1, 60, what="the placed order")
    wait_until(lambda: len(read_all(shop.kafka.bootstrap, [topic])) == 2, 60, what="the changed order")


def test_a_topic_name_that_kafka_rejects_only_dead_letters_its_event(shop: Shop) -> None:
    """A template makes the topic name from the aggregate. For Kafka, a_b collides with a.b."""
    shop.configure(topics={"template": f"{shop.name}.{{aggregate}}"})
    connector = shop.start()
    row = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) SELECT gen_random_uuid(), %s, 'k', %s, %s"
    for aggregate in ("a.b", "a_b", "c"):
        shop.execute(row, aggregate, "OrderPlaced", VALID)
    last = shop.insert(VALID)
    wait_until(lambda: last in {seen.id for seen in shop.published()}, 60, what=f"the last event:\n{connector.log}")
    (letter,) = read_all(shop.kafka.bootstrap, [shop.letters])
    assert header(letter, "tailrace.reason") == "permanent_failure"
    assert "collides" in header(letter, "tailrace.explanation")
    for aggregate in ("a.b", "c"):
        assert len(read_all(shop.kafka.bootstrap, [f"{shop.name}.{aggregate}"])) == 1
    assert connector.running
