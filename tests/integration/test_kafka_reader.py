"""Reads topics of a real Kafka to their end: which end counts, which records are read, and how long it may take."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest
from confluent_kafka import Producer, TopicPartition

from tailrace.dlq.reader import DeadLetterReader
from tailrace.errors import KafkaUnavailable, TopicMissing
from tailrace.kafka import reader
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import OffsetRange, RangeReader, TopicFollower, read_topic
from tailrace.testkit.stack import KafkaBroker, wait_until
from tailrace.testkit.topic_reader import RecordReader, read_all

COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "100",
    "max.compaction.lag.ms": "100",
    "delete.retention.ms": "0",
}


@pytest.fixture
def options(kafka: KafkaBroker) -> KafkaOptions:
    return KafkaOptions(kafka.bootstrap, f"reader-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def topic(kafka: KafkaBroker, options: KafkaOptions) -> str:
    kafka.create_topic(options.pipeline, 1)
    return options.pipeline


def write(options: KafkaOptions, topic: str, *values: str, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": options.bootstrap, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, key=value[0], partition=partition)
    assert producer.flush(30) == 0


def begin(options: KafkaOptions, topic: str, *values: str) -> Producer:
    """Begins a transaction, writes its records and leaves it open."""
    producer = Producer({"bootstrap.servers": options.bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, key=value[0], partition=0)
    assert producer.flush(30) == 0
    return producer


def values_of(options: KafkaOptions, topic: str, *, include_open: bool = False) -> list[bytes | None]:
    return [message.value() for message in read_topic(options, topic, include_open=include_open)]


def test_an_empty_topic_has_no_records(options: KafkaOptions, topic: str) -> None:
    assert values_of(options, topic) == []
    with RangeReader(options, "test") as found:
        assert found.bounds(topic) == {0: OffsetRange(0, 0)}


def test_a_missing_topic_is_empty_unless_it_must_exist(options: KafkaOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MISSING_SECONDS", 0.5)
    assert values_of(options, "no-such-topic") == []
    with RangeReader(options, "test") as found, pytest.raises(TopicMissing, match="no-such-topic"):
        found.ranges("no-such-topic", must_exist=True)


def test_a_redrive_does_not_take_unknown_resolutions_for_none(
    options: KafkaOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started may not know the topic; all resolved dead letters would be published again."""
    monkeypatch.setattr(reader, "MISSING_SECONDS", 0.5)
    letters = DeadLetterReader(replace(options, dead_letter_topic=options.pipeline))
    letters.resolved_ids(final=True)
    with pytest.raises(KafkaUnavailable, match=f"does not know {options.pipeline}"):
        letters.resolved_ids(final=True, must_exist=True)


def test_records_written_during_a_read_are_not_read(options: KafkaOptions, topic: str) -> None:
    write(options, topic, "a1", "b1")
    with RangeReader(options, "test", batch_records=1) as found:
        came = []
        for message in found.records(topic, found.ranges(topic)):
            came.append(message.value())
            write(options, topic, "c1")
        assert came == [b"a1", b"b1"]
        assert found.ranges(topic) == {0: OffsetRange(0, 4)}


def test_an_aborted_transaction_at_the_end_is_skipped(options: KafkaOptions, topic: str) -> None:
    write(options, topic, "a1")
    begin(options, topic, "x1", "x2").abort_transaction(30)
    assert values_of(options, topic, include_open=True) == [b"a1"]
    assert values_of(options, topic) == [b"a1"]


def test_an_open_transaction_ends_the_topic_or_is_waited_for(options: KafkaOptions, topic: str) -> None:
    write(options, topic, "a1")
    writer = begin(options, topic, "t1")
    write(options, topic, "b1")
    assert values_of(options, topic) == [b"a1"]
    with RangeReader(options, "test", stall_seconds=1.0) as found:
        ranges = found.ranges(topic, include_open=True)
        assert ranges == {0: OffsetRange(0, 3)}
        began = time.monotonic()
        with pytest.raises(KafkaUnavailable, match=f"the end of {topic} could not be read within 1 s"):
            list(found.records(topic, ranges))
        assert time.monotonic() - began > 1.0
        writer.commit_transaction(30)
        assert [message.value() for message in found.records(topic, ranges)] == [b"a1", b"t1", b"b1"]


def test_an_uncommitted_reader_sees_open_transactions(options: KafkaOptions, topic: str) -> None:
    writer = begin(options, topic, "t1")
    with RangeReader(options, "test", committed=False) as found:
        assert [message.value() for message in found.records(topic, found.ranges(topic))] == [b"t1"]
    writer.abort_transaction(30)


def test_the_test_kit_waits_for_a_transaction_that_is_being_committed(options: KafkaOptions, topic: str) -> None:
    """Kafka confirms a commit before its records can be read; until then it is like an open transaction."""
    write(options, topic, "a1")
    writer = begin(options, topic, "t1")
    assert [message.value() for message in read_all(options.bootstrap, [topic])] == [b"a1"]
    with RecordReader(options.bootstrap, [topic], include_open=True) as found, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(found.more)
        wait_until(lambda: found.messages, 30, what="the record before the transaction")
        assert not reading.done()
        writer.commit_transaction(30)
        assert [message.value() for message in reading.result(60)] == [b"a1", b"t1"]


def test_the_time_that_the_caller_takes_is_no_stall(options: KafkaOptions, topic: str) -> None:
    write(options, topic, "a1", "b1", "c1")
    with RangeReader(options, "test", stall_seconds=3.0, batch_records=1) as found:
        came = 0
        for _ in found.records(topic, found.ranges(topic)):
            came += 1
            Event().wait(3.2 if came == 1 else 0)
    assert came == 3


def test_records_that_were_deleted_from_the_front_are_skipped(
    kafka: KafkaBroker, options: KafkaOptions, topic: str
) -> None:
    write(options, topic, "a1", "b1", "c1", "d1")
    admin = kafka.admin()
    with RangeReader(options, "test") as found:
        before = found.ranges(topic)
        (deleted,) = admin.delete_records([TopicPartition(topic, 0, 2)]).values()
        deleted.result(30)
        assert [message.value() for message in found.records(topic, before)] == [b"c1", b"d1"]
        assert found.ranges(topic) == {0: OffsetRange(2, 4)}
        (deleted,) = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
        deleted.result(30)
        assert list(found.records(topic, before)) == []
        assert found.ranges(topic) == {}
        assert found.bounds(topic) == {0: OffsetRange(4, 4)}


def test_offsets_removed_by_compaction_are_no_stall(kafka: KafkaBroker, options: KafkaOptions) -> None:
    topic = options.pipeline
    kafka.create_topic(topic, 1, COMPACTED)
    write(options, topic, *(f"k{number}" for number in range(20)))

    def compacted() -> bool:
        write(options, topic, "z")  # rolls the segment: the active one is not compacted
        return len(values_of(options, topic)) < 20

    wait_until(compacted, 120, what="the compaction of the topic")
    with RangeReader(options, "test", stall_seconds=5.0) as found:
        ranges = found.ranges(topic)
        assert ranges[0].start == 0
        came = list(found.records(topic, {0: OffsetRange(0, 19)}))
        assert all((message.offset() or 0) < 19 for message in came)
        assert len(list(found.records(topic, ranges))) < ranges[0].end


def test_several_partitions_and_topics_are_read_at_once(kafka: KafkaBroker, options: KafkaOptions) -> None:
    first, second = f"{options.pipeline}.a", f"{options.pipeline}.b"
    for name in (first, second):
        kafka.create_topic(name, 3)
    write(options, first, "a0", partition=0)
    write(options, first, "a2", "b2", partition=2)
    write(options, second, "c1", partition=1)
    with RangeReader(options, "test", stall_seconds=10.0, batch_records=1) as found:
        ranges = {(name, number): span for name in (first, second) for number, span in found.ranges(name).items()}
        assert sorted(ranges) == [(first, 0), (first, 2), (second, 1)]
        for _ in range(2):  # finished partitions are paused: the next read must resume them
            came = [
                (message.topic(), message.partition(), message.value())
                for batch in found.batches(ranges)
                for message in batch
            ]
            assert sorted(came, key=str) == sorted(
                [(first, 0, b"a0"), (first, 2, b"a2"), (first, 2, b"b2"), (second, 1, b"c1")], key=str
            )


def test_records_fetched_for_an_abandoned_read_do_not_end_the_next_one(options: KafkaOptions, topic: str) -> None:
    """The client has fetched records behind the position that the next read starts from."""
    write(options, topic, *(f"v{number}" for number in range(500)))
    with RangeReader(options, "test", stall_seconds=10.0, batch_records=10) as found:
        for start in (100, 0, 499, 250, 0):
            found.assign({(topic, 0): OffsetRange(0, 500)})
            while found.position(topic, 0) < 200:
                found.poll()
            found.assign({(topic, 0): OffsetRange(start, 500)})
            came = []
            while found.waiting:
                came += [message.offset() for message in found.poll()]
            assert came == list(range(start, 500))


def test_a_range_begins_with_the_first_record_of_a_time(options: KafkaOptions, topic: str) -> None:
    producer = Producer({"bootstrap.servers": options.bootstrap})
    now = time.time_ns() // 1_000_000
    for age in (3000, 2000, 1000):
        producer.produce(topic, str(age), partition=0, timestamp=now - age)
    assert producer.flush(30) == 0
    came = [message.value() for message in read_topic(options, topic, since_ms=now - 2000)]
    assert came == [b"2000", b"1000"]
    assert list(read_topic(options, topic, since_ms=now + 60_000)) == []


def test_a_follower_continues_and_starts_over_if_the_topic_is_recreated(
    kafka: KafkaBroker, options: KafkaOptions, topic: str
) -> None:
    follower = TopicFollower(options, topic, "test")
    try:
        write(options, topic, "a1", "b1")
        assert [message.value() for message in follower.read()] == [b"a1", b"b1"]
        assert list(follower.read()) == []
        write(options, topic, "c1")
        assert [message.value() for message in follower.read()] == [b"c1"]
        admin = kafka.admin()
        (deleted,) = admin.delete_topics([topic]).values()
        deleted.result(30)
        wait_until(lambda: values_of(options, topic) == [], 30, what="the deletion of the topic")
        kafka.create_topic(topic, 1)
        write(options, topic, "d1")
        wait_until(lambda: [message.value() for message in follower.read()] == [b"d1"], 30, what="the new topic")
    finally:
        follower.close()
