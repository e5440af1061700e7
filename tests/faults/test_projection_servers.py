"""A projection without its servers: the database away, Kafka away, a handler that blocks everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_projection import Projected
from tailrace.stack import KafkaBroker, PostgresServer, Source, wait_until


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Projected]:
    """With servers of its own, to be killed."""
    with PostgresServer(source=Source.LOCAL) as postgres, KafkaBroker(source=Source.LOCAL) as kafka:
        made = Projected(postgres, kafka, tmp_path)
        yield made
        made.close()


def test_the_database_dies_and_comes_back(own: Projected) -> None:
    """No event is to blame for it: nothing is set aside, and everything goes on by itself."""
    own.configure("events=5, within=0.01, max_attempts=1")
    worker = own.start()
    own.publish(*({"key": f"k-{n % 5}"} for n in range(30)))
    own.caught_up()
    own.postgres.kill()
    own.publish(*({"key": f"k-{n % 5}"} for n in range(30)))
    worker.says('"held up"', 120)
    own.postgres.start()
    own.caught_up()
    worker.says('"goes on"', 120)
    assert own.set_aside() == []
    assert worker.running


def test_a_database_that_stays_away_ends_the_worker(own: Projected) -> None:
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


def test_a_database_that_is_away_at_the_start_is_waited_for(own: Projected) -> None:
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
    """Nothing else can notice: no timer runs any more."""
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


def test_a_worker_beyond_the_number_of_partitions_is_not_taken_for_stalled(projected: Projected) -> None:
    projected.configure("give_up=1, within=0.01")
    workers = [projected.start(wait=False) for _ in range(4)]
    projected.publish(*({"key": f"k-{n}"} for n in range(30)))
    projected.caught_up()
    wait_until(lambda: sum('"reading"' in worker.log for worker in workers) == 3, 120, what="three of them to read")
    projected.publish(*({"key": f"k-{n}"} for n in range(30)))
    projected.caught_up()
    assert all(worker.running for worker in workers), [worker.log for worker in workers if not worker.running]
