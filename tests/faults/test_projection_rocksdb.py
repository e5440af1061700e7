"""Projections in RocksDB with real workers: killed around commits, started twice, with a topic that was replaced."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.projection import Projected
from helpers.rocks import contents
from tailrace import failpoints
from tailrace.testkit.stack import KafkaBroker, PostgresServer, wait_until
from tailrace.testkit.topic_reader import read_all

APP = """
from tailrace.projections import Projection, RocksStore, projection_app

app = projection_app({name!r}, broker="kafka://{bootstrap}")
projection = Projection(app, {topic!r}, store=RocksStore("db", families=["history", "count"]), {settings})

@projection.on()
async def append(event, effects):
    history = effects.get("history", event.key) or b""
    effects.put("history", event.key, history + event.id.encode() + b" ")
    if event.data.get("shared"):
        # All partitions count in one key.
        effects.put("count", b"events", str(int(effects.get("count", b"events") or 0) + 1).encode())
{more}
"""
KEYS = [f"o-{number}" for number in range(12)]


class RocksProjected(Projected):
    """A projection whose state is a folder: it can be read when no worker runs."""

    def configure(self, settings: str = "within=0.01", more: str = "", *, app: str = APP) -> None:
        super().configure(settings, more, app=app)

    def state(self) -> dict[str, list[str]]:
        found = contents(self.folder / "db", ["history"])["history"]
        return {key.decode(): ids.decode().split() for key, ids in found.items()}

    @property
    def count(self) -> int:
        return int(contents(self.folder / "db", ["count"])["count"].get(b"events", b"0"))

    def caught_up(self, timeout: float = 120) -> None:
        """Waits until the worker has read everything, stops it, and compares its folder with the topic."""
        ends = {
            number: max(message.offset() or 0 for message in messages) + 1
            for number in range(self.partitions)
            if (messages := [each for each in self.published() if each.partition() == number])
        }
        worker = self.workers[-1]
        wait_until(
            lambda: all(self.committed().get(number, 0) >= end for number, end in ends.items()) or not worker.running,
            timeout,
            what="the worker to catch up",
        )
        assert worker.stop() == 0, worker.log
        assert self.state() == self.fold(), worker.log


@pytest.fixture
def projected(postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[RocksProjected]:
    made = RocksProjected(postgres, kafka, tmp_path)
    yield made
    made.close()


def some_events(projected: Projected, chance: random.Random, count: int = 20) -> None:
    projected.publish(*({"key": chance.choice(KEYS), "value": b'{"shared": true}'} for _ in range(count)))


@pytest.mark.parametrize("point", [failpoints.PROJECTION_APPLIED, failpoints.PROJECTION_COMMITTED])
@pytest.mark.parametrize("nth", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_at(projected: RocksProjected, point: str, nth: int) -> None:
    """Killed before the commit, a batch is applied again; after it, never. Three partitions share the folder."""
    projected.configure("events=7, within=0.01")
    chance = random.Random(nth)
    for _ in range(5):
        some_events(projected, chance)
    worker = projected.start(kill=f"{point}:{nth}", wait=False)
    assert worker.ended(120) == -signal.SIGKILL, worker.log
    applied = projected.count
    assert applied == sum(map(len, projected.state().values())) < 100
    if point == failpoints.PROJECTION_COMMITTED:
        assert applied > 0, "what it had committed is there"
    projected.start()
    some_events(projected, chance)
    projected.caught_up()
    assert projected.count == 120


def test_a_second_worker_is_refused_and_the_first_continues(projected: RocksProjected) -> None:
    first = projected.start()
    second = projected.start(wait=False)
    assert second.ended(120) == 3, second.log
    assert "StoreInUse" in second.log
    assert "Run one worker for this projection" in second.log
    reset = projected.command("--reset", "earliest")
    assert reset.returncode == 3
    assert "StoreInUse" in reset.stderr
    some_events(projected, random.Random(1))
    projected.workers.remove(second)
    assert first.running
    projected.caught_up()


def test_a_checkpoint_ahead_of_the_topic(projected: RocksProjected) -> None:
    """The topic was re-created: its offsets are lower than the stored ones."""
    projected.start()
    some_events(projected, random.Random(1))
    projected.caught_up()
    before = contents(projected.folder / "db", ["history", "count", "tailrace"])
    projected.recreate_topic()
    assert read_all(projected.kafka.bootstrap, [projected.topic]) == []
    worker = projected.start(wait=False)
    assert worker.ended(120) == 3, worker.log
    assert "TopicReplaced" in worker.log
    assert contents(projected.folder / "db", ["history", "count", "tailrace"]) == before


CHAIN = """
from tailrace.projections import Projection, RocksStore, projection_app

app = projection_app({name!r}, broker="kafka://{bootstrap}")
store = RocksStore("db", families=["history"], keep_blocks=3)
projection = Projection(app, {topic!r}, store=store, {settings})

@projection.on()
async def follow(event, effects):
    if "rollback" in event.data:
        effects.rollback_to(event.data["rollback"])
    else:
        with effects.block(event.data["slot"], b""):
            effects.put("history", b"slots", (effects.get("history", b"slots") or b"") + b"%d " % event.data["slot"])
{more}
"""


@pytest.mark.parametrize(
    ("wrong", "error", "remedy"),
    [
        ({"rollback": 1}, "RollbackTooDeep", "raise `keep_blocks`"),
        ({"slot": 5}, "BlockOutOfOrder", "Check that the topic has one partition"),
    ],
)
def test_what_cannot_be_applied_to_the_chain_stops_the_worker(
    postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path, wrong: dict[str, int], error: str, remedy: str
) -> None:
    """The worker ends with the error, and changes nothing: also after a restart, and by no dead letter."""
    projected = RocksProjected(postgres, kafka, tmp_path, partitions=1)
    projected.configure('on_failure="halt", events=1, within=0.01', app=CHAIN)
    values = [*({"slot": slot} for slot in range(6)), {"rollback": 4}, {"slot": 7}, wrong, {"slot": 9}]
    projected.publish(*({"key": "chain", "value": json.dumps(value).encode()} for value in values))
    try:
        for _ in range(2):
            worker = projected.start(wait=False)
            assert worker.ended(120) == 3, worker.log
            assert error in worker.log
            assert remedy in worker.log
            assert contents(tmp_path / "db", ["history"])["history"] == {b"slots": b"0 1 2 3 4 7 "}
        assert projected.dead_letters() == []
    finally:
        projected.close()
