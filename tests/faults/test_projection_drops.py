"""Records that are dropped between Kafka and a projection, as Faust does in several places.

They are read again; if they are dropped each time, the worker ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.projection import Projected
from tailrace.testkit.stack import KafkaBroker, PostgresServer

ONCE = """
STEPS = ["answer", "faust", "take", "put"]
def drops(step, offset):
    # Once at each step, one after the other, and not the first record: the records before it are applied.
    if offset >= 3 and STEPS[:1] == [step]:
        del STEPS[0]
        print("dropped by", step, flush=True)
        return True
    return False
"""
ALWAYS = """
def drops(step, offset):
    return step == "faust" and offset >= 3
"""
DROPS = """
import faust.transport.consumer
from tailrace.projections.faust.consumer_thread import ConsumerThread, FetchResult
from tailrace.projections.core.partition_worker import PartitionWorker

fetch, getmany = ConsumerThread.fetch, faust.transport.consumer.Consumer.getmany
take, put = projection.receive, PartitionWorker.put

async def lost(self, *args):
    fetched = await fetch(self, *args)
    if any(drops("answer", records[-1].offset) for records in fetched.values()):
        return FetchResult({}, {})
    return fetched

async def filtered(self, timeout):
    async for tp, message in getmany(self, timeout):
        if not drops("faust", message.offset):
            yield tp, message

def taken(topic, partition, offset, *more):
    return not drops("take", offset) and take(topic, partition, offset, *more)

def queued(self, event, follows):
    if not drops("put", event.offset):
        put(self, event, follows)

ConsumerThread.fetch, faust.transport.consumer.Consumer.getmany = lost, filtered
projection.receive, PartitionWorker.put = taken, queued
"""


@pytest.fixture
def narrow(postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Projected]:
    made = Projected(postgres, kafka, tmp_path, partitions=1)
    yield made
    made.close()


def test_dropped_records_are_read_again(narrow: Projected) -> None:
    """Also the last record, after which none shows the gap; only a drop in the worker needs a following record."""
    narrow.configure("within=0.01", ONCE + DROPS)
    narrow.publish(*({"key": key} for key in "abcd"))
    worker = narrow.start()
    worker.says("dropped by put", 60)
    narrow.publish({"key": "behind"})
    narrow.caught_up(60)
    assert worker.log.count("reading again") == 4, worker.log


def test_records_that_are_dropped_each_time_end_the_worker(narrow: Projected) -> None:
    narrow.configure("within=0.01", ALWAYS + DROPS)
    ids = narrow.publish(*({"key": "k"} for _ in range(6)))
    worker = narrow.start(wait=False)
    assert worker.ended(60) == 3, worker.log
    assert "RecordsDropped" in worker.log
    assert narrow.state() == {"k": ids[:3]}
    narrow.configure("within=0.01")
    narrow.start()
    narrow.caught_up()
