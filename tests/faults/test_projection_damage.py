"""Records that cannot be read: headers that are not text, and a log that was damaged on the broker's disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.projection import Projected
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until

SEND = """
import asyncio, sys
from aiokafka import AIOKafkaProducer

class NotUtf8(str):
    # The name of a header, as a producer in another language can write it.
    def encode(self, *_):
        return b"x\\xff\\xfey"

async def send():
    async with AIOKafkaProducer(bootstrap_servers=sys.argv[1]) as producer:
        await producer.send_and_wait(sys.argv[2], b"{}", key=b"k", headers=[(NotUtf8("xxxx"), b"1")])

asyncio.run(send())
"""


@pytest.fixture
def narrow(postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Projected]:
    made = Projected(postgres, kafka, tmp_path, partitions=1)
    yield made
    made.close()


def test_a_record_with_an_unreadable_header_is_dead_lettered(narrow: Projected) -> None:
    first = narrow.publish({"key": "k"})
    # Without its extensions, which accept no other class than str.
    environ = {**os.environ, "AIOKAFKA_NO_EXTENSIONS": "1"}
    subprocess.run([sys.executable, "-c", SEND, narrow.kafka.bootstrap, narrow.topic], env=environ, check=True)
    last = narrow.publish({"key": "k"}, {"key": "k"})
    worker = narrow.start()
    worker.says('"dead-lettered"', 60)
    [letter] = narrow.dead_letters()
    assert letter["tailrace.reason"] == "poison_message"
    wait_until(lambda: narrow.state() == {"k": [*first, *last]}, 60, what="the events around it")


@pytest.fixture
def own(postgres: PostgresServer, tmp_path: Path) -> Iterator[Projected]:
    """A projection with its own broker, whose log is damaged."""
    with KafkaBroker(choice=ServerChoice.LOCAL) as kafka:
        made = Projected(postgres, kafka, tmp_path, partitions=1)
        yield made
        made.close()


def test_a_damaged_record_is_not_applied(own: Projected) -> None:
    [first] = own.publish({"key": "k", "value": b'{"amount": 1}'})
    own.publish({"key": "k", "value": b'{"amount": 2}'})
    own.publish({"key": "k", "value": b'{"amount": 3}'})
    [log] = own.kafka.data_dir.glob(f"{own.topic}-0/*.log")
    content = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(content.index(b'{"amount": 2}'))
        file.write(b'{"amount": 9}')
    worker = own.start(wait=False)
    assert worker.ended(60) == 3, worker.log
    assert "RecordDamaged" in worker.log
    assert "offset 2" in worker.log
    assert own.state() in ({}, {"k": [first]})
