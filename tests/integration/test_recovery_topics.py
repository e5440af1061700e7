"""What topics prove, on a real Kafka: an absent event was missed only if its topic would still have it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from helpers.shop import Shop
from tailrace.config.load import load_pipeline
from tailrace.event import OutboxEvent
from tailrace.kafka.client import KafkaOptions
from tailrace.pipeline.processor import EventProcessor
from tailrace.records.formats import RecordFormat
from tailrace.recovery.evidence import Evidence
from tailrace.recovery.id_index import IdIndex, OwnerRules
from tailrace.recovery.published_index import PublishedIndex
from tailrace.recovery.rules import SKEW_MS
from tailrace.state.position_history import Offsets, TopicEnds
from tailrace.testkit.stack import KafkaBroker, wait_until
from tailrace.verify.backend import Window
from tailrace.verify.fingerprints import Fingerprinter
from tailrace.verify.kafka_records import KafkaRecords
from tailrace.worker.wiring import wire

THEN = 1_700_000_000_000
"""An old commit time."""


class Topic:
    """A topic of one test, written to directly."""

    def __init__(self, kafka: KafkaBroker, name: str) -> None:
        self.kafka = kafka
        self.name = name
        self.ids = IdIndex()

    def make(self, **config: str) -> None:
        """Old records must not be deleted."""
        named = {name.replace("_", "."): value for name, value in config.items()}
        self.kafka.create_topic(self.name, 1, {"retention.ms": "-1", **named})

    def recreate(self) -> None:
        self.delete()
        self.make()

    def delete(self) -> None:
        admin = self.kafka.admin()
        admin.delete_topics([self.name])[self.name].result(20)
        wait_until(lambda: self.name not in admin.list_topics(timeout=10).topics, 60, what="the end of the topic")

    def write(self, *events: str, committed_ms: int = THEN, at_ms: int = THEN, value: str = "{}", **more: str) -> None:
        """Publishes records of a pipeline to partition 0."""
        producer = self._producer()
        for event in events:
            headers: Any = {"id": event, "type": "T", "position": "0/1:1", "timestamp": str(committed_ms), **more}
            named = [(name.replace("_", "."), text) for name, text in headers.items()]
            producer.produce(self.name, value, b"k", 0, timestamp=at_ms, headers=named)
        assert producer.flush(30) == 0

    def write_nothing(self) -> None:
        """A record without an event id, a shadow record, and an aborted one."""
        producer = self._producer(**{"transactional.id": f"{self.name}-aborted"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(self.name, "aborted", b"k", 0)
        assert producer.flush(30) == 0
        producer.abort_transaction(30)
        self.write("shadow", tailrace_shadow="1")
        foreign = self._producer()
        foreign.produce(self.name, "foreign", b"k", 0)
        assert foreign.flush(30) == 0

    def delete_before(self, offset: int) -> None:
        admin, place = self.kafka.admin(), TopicPartition(self.name, 0, offset)
        admin.delete_records([place])[place].result(30)

    def read(self, **begin: Offsets) -> float:
        """Returns since when the topic keeps everything; `begin_at` and `expect` are called before."""
        unused: Any = None
        processor = EventProcessor(unused, unused, unused, unused, unused, frozenset(), 1, 1)
        options = KafkaOptions(self.kafka.bootstrap, "p", dead_letter_topic=f"{self.name}.letters")
        side = KafkaRecords(options, Fingerprinter(processor, RecordFormat()), lambda _: None, Window(), self.ids)
        for what, offsets in begin.items():
            for topic, starts in offsets.items():
                getattr(side, what)(topic, starts)
        side.start(side.existing(lambda name: name == self.name), to_the_end=True)
        side.finish()
        return side.kept_since[self.name]

    def _producer(self, **more: str) -> Producer:
        return Producer({"bootstrap.servers": self.kafka.bootstrap, **more})


@pytest.fixture
def topic(kafka: KafkaBroker) -> Iterator[Topic]:
    topic = Topic(kafka, f"topics-{uuid.uuid4().hex[:8]}")
    yield topic
    topic.ids.close()


def test_a_topic_that_was_recreated(topic: Topic) -> None:
    """It ends before the starting offset: then it is read whole, and proves nothing."""
    topic.make()
    topic.write(*"abcde")
    assert topic.read(begin_at={topic.name: {0: 4}}) == 0
    assert (topic.ids.find("d"), len(topic.ids.find("e"))) == ([], 1)
    topic.recreate()
    assert topic.read(begin_at={topic.name: {0: 4}}) == inf, "empty"
    topic.write("new")
    assert topic.read(begin_at={topic.name: {0: 4}}) == inf
    assert len(topic.ids.find("new")) == 1
    assert topic.read(expect={topic.name: {0: 4}}) == inf
    assert topic.read(expect={topic.name: {0: 1}}) == 0
    assert topic.read(expect={topic.name: {0: 1, 1: 1}}) == inf, "it had more partitions"


def test_the_first_record_that_is_kept_was_published_late(topic: Topic) -> None:
    """Its own timestamp counts, not its commit time: what was published before it is gone."""
    topic.make()
    topic.write("a", "b", at_ms=THEN + 1000)
    topic.write("a", at_ms=THEN + 5000, tailrace_replay="again")
    assert topic.read() == 0
    topic.delete_before(2)
    assert topic.read() == THEN + 5000
    topic.write("c", committed_ms=THEN + 7000, at_ms=THEN + 6000)
    topic.delete_before(3)
    assert topic.read() == THEN + 7000


def test_without_records_the_time_of_deletion_is_unknown(topic: Topic) -> None:
    topic.make()
    topic.write("a", "b")
    topic.write_nothing()
    assert topic.read() == 0
    topic.delete_before(2)
    assert topic.read() == inf
    assert topic.read(begin_at={topic.name: {0: 2}}) == 0, "what is gone was not to be read"


@pytest.fixture
def seen(shop: Shop) -> Iterator[Callable[..., PublishedIndex]]:
    """Returns the index of what Kafka holds of the shop."""
    opened: list[PublishedIndex] = []

    def read(offsets: Offsets | None = None, **more: Any) -> PublishedIndex:
        wiring = wire(load_pipeline(shop.file))
        evidence = Evidence(None, None, offsets or {}, THEN if offsets else 0)
        opened.append(PublishedIndex(wiring, wiring.processor(), evidence, **more))
        opened[-1].read()
        return opened[-1]

    yield read
    for each in opened:
        each.close()


def test_a_topic_that_was_written_and_is_gone(shop: Shop, seen: Callable[..., PublishedIndex]) -> None:
    topic = Topic(shop.kafka, shop.topic)
    assert seen().kept_since == 0
    assert seen(reached=dict.fromkeys([shop.topic], TopicEnds({}))).kept_since == inf
    topic.make()
    assert seen(reached=dict.fromkeys([shop.topic], TopicEnds({}))).kept_since == 0


def test_topics_that_a_row_would_not_go_to_today(shop: Shop, seen: Callable[..., PublishedIndex]) -> None:
    Topic(shop.kafka, shop.topic).make()
    Topic(shop.kafka, f"{shop.topic}.once").make(cleanup_policy="compact")
    assert seen().kept_since == 0
    assert seen(reached=dict.fromkeys([f"{shop.topic}.once"], TopicEnds({}))).kept_since == inf


def test_a_recreated_topic_is_remembered_when_it_is_read_from_its_beginning(
    shop: Shop, seen: Callable[..., PublishedIndex]
) -> None:
    topic = Topic(shop.kafka, shop.topic)
    topic.make()
    topic.write("a", "b")
    deepened = seen({shop.topic: {0: 3}})
    assert deepened.kept_since == inf
    deepened.read_from_beginning()
    assert deepened.kept_since == inf
    assert seen({shop.topic: {0: 1}}).kept_since == 0
    # Only the position history knows.
    assert seen(reached={shop.topic: TopicEnds({0: 3})}).kept_since == inf
    assert seen(reached={shop.topic: TopicEnds({0: 2}, THEN)}).kept_since == THEN + SKEW_MS
    assert seen(reached={shop.topic: TopicEnds({0: 2})}).kept_since == 0


def test_an_id_that_two_pipelines_share(shop: Shop, seen: Callable[..., PublishedIndex]) -> None:
    topic = Topic(shop.kafka, shop.topic)
    topic.make()
    topic.write("42", value='{"of": "another"}')
    mine = OutboxEvent("42", "OrderPlaced", "order", b"k", b'{"of": "mine"}', None, "0/1:1", THEN, [])
    found = seen()
    mine = mine._replace(type="T")
    nowhere = mine._replace(aggregate="goes nowhere")
    assert found.differs(mine, found.find("42", mine))
    assert found.differs(nowhere, found.find("42", nowhere))
    topic.write("42", value='{"of": "mine"}')
    found.read()
    assert not found.differs(mine, found.find("42", mine))
    # For a record that does not name its pipeline, key and type count as well.
    for another in (mine._replace(key=b"another"), mine._replace(type="Another")):
        assert found.differs(another, found.find("42", another))
    assert found.events == 1


def test_a_record_that_another_pipeline_published(shop: Shop, seen: Callable[..., PublishedIndex]) -> None:
    """It counts as this pipeline's event only if consumers could not distinguish the two, and then as doubtful."""
    topic = Topic(shop.kafka, shop.topic)
    topic.make()
    topic.write("42", tailrace_pipeline="another")
    mine = OutboxEvent("42", "T", "order", b"k", b"{}", None, "0/1:1", THEN, [])
    found = seen()
    assert found.find("42", None) == []
    for each in (mine._replace(key=b"another"), mine._replace(payload=b"[]"), mine._replace(aggregate="nowhere")):
        assert found.find("42", each) == []
    assert len(found.find("42", mine)) == 1
    assert found.differs(mine, found.find("42", mine))
    assert seen(owner_rules=OwnerRules(elsewhere={b"another"})).find("42", mine) == []
    topic.write("42", tailrace_pipeline=shop.name)
    found.read()
    assert not found.differs(mine, found.find("42", mine))
