"""A projection without its database or Kafka, and with a handler that blocks the event loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState

from helpers.kill_loop import ended_within
from helpers.projection import Projected
from tailrace.projections.faust.maintenance import LOOK_SECONDS
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until

IDLE_SECONDS = 10


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Projected]:
    """A projection with its own servers, which are killed."""
    with PostgresServer(choice=ServerChoice.LOCAL) as postgres, KafkaBroker(choice=ServerChoice.LOCAL) as kafka:
        made = Projected(postgres, kafka, tmp_path)
        yield made
        made.close()


def test_the_database_dies_and_comes_back(own: Projected) -> None:
    """No event is dead-lettered, and the worker continues automatically."""
    own.configure("events=5, within=0.01, max_attempts=1")
    worker = own.start()
    own.publish(*({"key": f"k-{n % 5}"} for n in range(30)))
    own.caught_up()
    own.postgres.kill()
    own.publish(*({"key": f"k-{n % 5}"} for n in range(30)))
    worker.says('"blocked"', 120)
    own.postgres.start()
    own.caught_up()
    worker.says('"resumed"', 120)
    assert own.dead_letters() == []
    assert worker.running


def test_a_database_that_stays_unavailable_ends_the_worker(own: Projected) -> None:
    own.configure("give_up=2, within=0.01")
    worker = own.start()
    own.publish({"key": "k"})
    own.caught_up()
    own.postgres.kill()
    own.publish({"key": "k"})
    assert worker.ended(120) == 3, worker.log
    own.postgres.start()
    own.configure("within=0.01")
    own.start()
    own.caught_up()


def test_the_worker_waits_for_its_database_at_the_start(own: Projected) -> None:
    own.postgres.kill()
    own.publish({"key": "k"})
    worker = own.start(wait=False)
    worker.says('"waiting"', 120)
    own.postgres.start()
    own.caught_up()


def test_kafka_dies_and_comes_back(own: Projected) -> None:
    own.configure("events=5, within=0.01")
    worker = own.start()
    own.publish(*({"key": f"k-{n % 5}"} for n in range(30)))
    own.caught_up()
    own.kafka.kill()
    own.kafka.start()
    own.publish(*({"key": f"k-{n % 5}"} for n in range(30)))
    own.caught_up(180)
    assert worker.running, worker.log


def test_a_handler_that_blocks_the_loop_ends_the_worker(projected: Projected) -> None:
    """Only the watchdog thread can notice: no timer runs."""
    more = """
@projection.on("Blocking")
async def block(event, effects):
    import time
    time.sleep(600)
"""
    projected.configure("give_up=2, within=0.01", more)
    worker = projected.start()
    projected.publish({"key": "k", "headers": {"type": "Blocking"}})
    assert worker.ended(120) == 3, worker.log
    assert "ProjectionStalled" in worker.log
    assert "event loop" in worker.log


@pytest.fixture
def narrow(postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Projected]:
    """Of a topic with one partition."""
    made = Projected(postgres, kafka, tmp_path, partitions=1)
    yield made
    made.close()


def shares(projected: Projected) -> list[int]:
    """How many partitions of the topic each member of the settled group has; none while it is not settled."""
    admin = projected.kafka.admin()
    group = admin.describe_consumer_groups([projected.group])[projected.group].result(30)
    if group.state is not ConsumerGroupState.STABLE:
        return []
    held = [member.assignment.topic_partitions for member in group.members]
    return sorted(sum(each.topic == projected.topic for each in assigned) for assigned in held)


@pytest.mark.slow
def test_a_worker_without_partitions_is_not_stalled(narrow: Projected) -> None:
    """More workers than partitions: the idle one keeps running."""
    narrow.configure(f"give_up={IDLE_SECONDS}, within=0.01")
    workers = [narrow.start(), narrow.start(wait=False)]
    wait_until(lambda: shares(narrow) == [0, 1], 120, what="one of them to get the partition, the other none")
    # The next check may come a whole pause after the bound.
    assert not ended_within(workers[0], IDLE_SECONDS + LOOK_SECONDS + 1), workers[0].log
    assert workers[1].running, workers[1].log
    narrow.publish(*({"key": f"k-{n}"} for n in range(30)))
    narrow.caught_up()
