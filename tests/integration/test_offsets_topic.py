"""The offsets topic is shared: an open transaction of another pipeline must not hide a stored position."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer

from tailrace.errors import KafkaUnavailable
from tailrace.kafka.client import KafkaOptions
from tailrace.state import offsets
from tailrace.testkit.stack import KafkaBroker


def transactional(kafka: KafkaBroker, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name})
    producer.init_transactions(20)
    return producer


def test_an_open_transaction_does_not_make_an_old_position_the_last(kafka: KafkaBroker) -> None:
    name = f"offsets-{uuid.uuid4().hex[:8]}"
    options = KafkaOptions(kafka.bootstrap, name, offsets_topic=name)
    offsets.ensure(options, offsets.admin_client(options))
    ours, other = transactional(kafka, name), transactional(kafka, f"{name}-other")

    def store(value: bytes) -> None:
        ours.begin_transaction()
        ours.produce(name, value, name)
        ours.commit_transaction(20)

    store(b"old")
    other.begin_transaction()
    other.produce(name, b"of another", "other")
    other.flush(10)
    store(b"new")
    with pytest.raises(KafkaUnavailable, match="could not be read within 1 s"):
        offsets.read_keys(options, {name.encode()}, timeout=1)
    other.abort_transaction(20)
    assert offsets.read_keys(options, {name.encode()}) == {name.encode(): b"new"}
