"""Reading topics to their ends on a real Kafka: concurrent writes delay neither the end nor the error."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer

from tailrace.errors import KafkaUnavailable
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.reader import OffsetRange
from tailrace.testkit.stack import KafkaBroker
from tailrace.verify.backend import Window
from tailrace.verify.topic_scan import PartitionScan, Scan


def test_a_hanging_transaction_is_reported_while_others_write(kafka: KafkaBroker) -> None:
    topic = f"hanging-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 2)
    hanging = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    hanging.init_transactions(30)
    hanging.begin_transaction()
    hanging.produce(topic, "open", partition=0)
    assert hanging.flush(30) == 0
    busy = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})

    def write() -> None:
        busy.produce(topic, "another", partition=1)
        assert busy.flush(30) == 0

    write()
    options = KafkaOptions(kafka.bootstrap, "p", dead_letter_topic=f"{topic}.letters")
    parts = [PartitionScan(topic, number, OffsetRange(0, 1), number) for number in (0, 1)]
    scan = Scan(options, Window(), parts, stall_seconds=2.0)

    def read() -> None:
        for came, _ in enumerate(scan.batches()):
            assert came < 30, "what is written behind the end is read, again and again"
            write()

    with pytest.raises(KafkaUnavailable, match=f"the end of {topic} could not be read within 2 s"):
        read()
    hanging.abort_transaction(30)
