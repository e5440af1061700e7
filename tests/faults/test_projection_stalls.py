"""A worker that no longer gets records reports it and ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.kill_loop import ended_within
from helpers.projection import Projected
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until

IMPATIENT = """
from tailrace.projections.faust import maintenance
maintenance.LOOK_SECONDS = 0.5
"""
NO_FETCHES = """
import asyncio
from pathlib import Path
from confluent_kafka import TopicPartition

@projection.on("Fetched")
async def stop_fetching(event, effects):
    asyncio.create_task(pause(event))

async def pause(event):
    # The client pauses a partition that was read to its end, and nothing resumes it.
    while app.reader.reached()[event.partition] < event.offset + 2:
        await asyncio.sleep(0.02)
    app.reader._thread._calls.put(lambda: app.reader._thread._consumer.pause([TopicPartition(*event.partition)]))
    Path("paused").touch()
"""
NO_BOUNDS = """
from tailrace.errors import KafkaUnavailable
from tailrace.projections.reader.offset_queries import OffsetQueries
async def bounds(self, partitions):
    raise KafkaUnavailable("no leader", remedy="Wait.")
OffsetQueries.bounds = bounds
"""


def test_a_worker_without_records_although_the_log_grows_ends(projected: Projected) -> None:
    """It looks idle: only the end of the log shows the difference."""
    projected.configure("give_up=3, within=0.01", IMPATIENT + NO_FETCHES)
    worker = projected.start()
    projected.publish({"key": "k", "headers": {"type": "Fetched"}})
    wait_until((projected.folder / "paused").exists, 60, what="the pause")
    assert not ended_within(worker, 5), "nothing is missing yet"
    projected.publish({"key": "k"})
    assert worker.ended(60) == 3, worker.log
    assert '"unhealthy"' in worker.log
    assert "ProjectionStalled" in worker.log
    assert "nothing has come from offset" in worker.log
    projected.configure("within=0.01")
    projected.start()
    wait_until(lambda: sum(map(len, projected.state().values())) == 1, 60, what="the second event")


def test_a_worker_that_cannot_start_to_read_ends(projected: Projected) -> None:
    """It has partitions, but Kafka does not return their offsets for too long."""
    projected.configure("give_up=3, within=0.01", IMPATIENT + NO_BOUNDS)
    worker = projected.start(wait=False)
    assert worker.ended(60) == 3, worker.log
    assert "waiting for Kafka" in worker.log
    assert '"unhealthy"' in worker.log
    assert "ProjectionStalled" in worker.log


@pytest.fixture
def own(postgres: PostgresServer, tmp_path: Path) -> Iterator[Projected]:
    """A projection with its own broker, which is killed."""
    with KafkaBroker(choice=ServerChoice.LOCAL) as kafka:
        made = Projected(postgres, kafka, tmp_path)
        yield made
        made.close()


@pytest.mark.slow
def test_a_worker_without_kafka_ends(own: Projected) -> None:
    own.configure("give_up=10, within=0.01", IMPATIENT)
    worker = own.start()
    own.publish({"key": "k"})
    own.caught_up()
    own.kafka.kill()
    assert worker.ended(60) == 3, worker.log
    assert "KafkaUnavailable" in worker.log or "ProjectionStalled" in worker.log, worker.log
