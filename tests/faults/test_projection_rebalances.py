"""No record is lost between Kafka and a projection while members join and leave the group.

A member that reads nothing takes partitions and gives them back; delays are added at each await.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymongo
import pytest
from confluent_kafka import Consumer

from helpers.projection import APP, Projected, Worker
from tailrace.testkit.stack import KafkaBroker, MongoServer, PostgresServer, wait_until

KEYS = [f"o-{number}" for number in range(12)]
ROUNDS = 7
QUICK = (
    'app = projection_app({name!r}, broker="kafka://{bootstrap}"',
    'app = projection_app({name!r}, broker="kafka://{bootstrap}", broker_heartbeat_interval=0.2',
)
"""A worker learns of a rebalance with a heartbeat."""
IN_MONGO = """
from tailrace.projections import MongoStore, Projection, projection_app

app = projection_app({name!r}, broker="kafka://{bootstrap}")
store = MongoStore({dsn!r}, {schema!r}, collections={{"history": []}})
projection = Projection(app, {topic!r}, store=store, {settings})

@projection.on()
async def append(event, effects):
    await effects.collection("history").update_one(
        {{"_id": event.key.decode()}}, {{"$push": {{"ids": event.id}}}}, upsert=True
    )
{more}
"""
DELAYS = """
import asyncio
from tailrace.projections.faust import consumer
from tailrace.projections.faust.app import ProjectionApp
from tailrace.projections.faust.consumer_thread import ConsumerThread
from tailrace.projections.faust.offset_coordinator import OffsetCoordinator
from tailrace.projections.faust.consumer import Consumer

# A fetch requested before a rebalance often ends after it.
consumer.POLL_SECONDS = 1.0
SITES = [
    (owner, name)
    for owner, names in (
        (ConsumerThread, "_begin fetch _fetch bounds _bounds begin _commit_offsets"),
        (OffsetCoordinator, "assigned positions revoked"),
        (Consumer, "_begin _getmany on_partitions_assigned on_partitions_revoked"),
        (ProjectionApp, "_on_partitions_assigned _on_partitions_revoked"),
    )
    for name in names.split()
]
turn = 0

def delayed(owner, name):
    original = getattr(owner, name)
    async def slowly(*args, **named):
        global turn
        if name == "on_partitions_revoked":
            turn += 1
        await pause(owner, name)
        result = await original(*args, **named)
        await pause(owner, name)
        return result
    setattr(owner, name, slowly)

async def pause(*site):
    # In each round at another site, and at no other, so that different steps overlap.
    if SITES[turn % len(SITES)] == site:
        await asyncio.sleep(0.25)

for site in SITES:
    delayed(*site)
"""
HELD = """
import asyncio
from pathlib import Path
from tailrace.projections.faust import consumer
from tailrace.projections.faust.consumer import Consumer

consumer.POLL_SECONDS = 60
fetch, begin = Consumer._getmany, Consumer._begin

async def patiently(self, active_partitions, timeout):
    if not Path("hold").exists():
        return await fetch(self, active_partitions, 0.2)
    # It outlives the rebalance: nothing is published before.
    print("asked", flush=True)
    fetched = await fetch(self, active_partitions, 60)
    print("answered", flush=True)
    return fetched

async def held(self, starts):
    await begin(self, starts)
    if Path("hold").exists():
        print("sought", flush=True)
    while Path("hold").exists():
        await asyncio.sleep(0.02)

Consumer._getmany, Consumer._begin = patiently, held
"""
CARELESS = """
from tailrace.projections.faust.consumer_thread import ConsumerThread
fetch_in_thread = ConsumerThread._fetch

class Current:
    def __init__(self, cursors):
        self.cursors = cursors

    def get(self, tp):
        return self.cursors[tp].epoch if tp in self.cursors else None

async def careless(self, asked, epochs, timeout):
    return await fetch_in_thread(self, asked, Current(self._cursors), timeout)

ConsumerThread._fetch = careless
"""
"""A consumer thread that uses the epochs at the end of a fetch, not those at its request."""


class InMongo(Projected):
    """The same projection in MongoDB."""

    def __init__(self, postgres: PostgresServer, kafka: KafkaBroker, folder: Path, mongo: MongoServer) -> None:
        super().__init__(postgres, kafka, folder, partitions=4)
        self.dsn = mongo.uri

    def state(self) -> dict[str, list[str]]:
        with pymongo.MongoClient[dict[str, list[str]]](self.dsn) as client:
            return {str(each["_id"]): each["ids"] for each in client[self.name].history.find()}


@pytest.fixture
def in_postgres(postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Projected]:
    made = Projected(postgres, kafka, tmp_path, partitions=4)
    yield made
    made.close()


@pytest.fixture
def in_mongo(postgres: PostgresServer, kafka: KafkaBroker, mongo: MongoServer, tmp_path: Path) -> Iterator[InMongo]:
    made = InMongo(postgres, kafka, tmp_path, mongo)
    yield made
    made.close()


@contextmanager
def visitor(projected: Projected) -> Iterator[Consumer]:
    """A group member that reads nothing: it takes partitions, and gives them back when it leaves."""
    member = Consumer(
        {
            "bootstrap.servers": projected.kafka.bootstrap,
            "group.id": projected.name,
            "partition.assignment.strategy": "roundrobin",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    member.subscribe([projected.topic])
    try:
        yield member
    finally:
        member.close()


def visit(projected: Projected, worker: Worker, chance: random.Random) -> None:
    before = worker.log.count('"reading"')

    def has_read(times: int) -> bool:
        now_and_then(projected, chance)
        return worker.log.count('"reading"') >= before + times

    with visitor(projected) as member:

        def is_settled() -> bool:
            member.poll(0.05)
            return has_read(1) and bool(member.assignment())

        wait_until(is_settled, 60, what="both to have partitions")
    wait_until(lambda: has_read(2), 60, what="the worker to have them all")


def now_and_then(projected: Projected, chance: random.Random) -> None:
    """Publishes with pauses, so that fetches requested before a rebalance are answered after it."""
    if chance.random() < 0.2:
        projected.publish(*({"key": chance.choice(KEYS)} for _ in range(4)))


def shake(projected: Projected, app: str) -> None:
    assert QUICK[0] in app
    projected.configure("events=5, within=0.01", DELAYS, app=app.replace(*QUICK))
    chance = random.Random(15)
    worker = projected.start()
    for _ in range(ROUNDS):
        visit(projected, worker, chance)
    projected.caught_up()
    assert worker.running, worker.log


def test_joins_and_leaves_with_delays_everywhere_in_postgres(in_postgres: Projected) -> None:
    shake(in_postgres, APP)


@pytest.mark.slow
def test_joins_and_leaves_with_delays_everywhere_in_mongodb(in_mongo: InMongo) -> None:
    shake(in_mongo, IN_MONGO)


@pytest.mark.parametrize("careless", ["", CARELESS], ids=["", "careless"])
def test_a_fetch_requested_before_a_rebalance_loses_nothing_after_it(in_postgres: Projected, careless: str) -> None:
    """It was requested in the old epoch: Faust drops its records, since nothing was requested in the new one yet.

    So it takes none; and if it does, the gap is noticed.
    """
    in_postgres.configure("within=0.01", HELD + careless, app=APP.replace(*QUICK))
    everywhere = [{"key": key} for key in KEYS]
    in_postgres.publish(*everywhere)
    worker = in_postgres.start()
    in_postgres.caught_up()
    hold = in_postgres.folder / "hold"
    hold.touch()
    worker.says("asked", 60)
    with visitor(in_postgres) as member:
        wait_until(lambda: member.poll(0.05) or "sought" in worker.log, 60, what="the seek of the new assignment")
        in_postgres.publish(*everywhere)
        worker.says("answered", 60)
        hold.unlink()
        wait_until(lambda: worker.log.count('"reading"') >= 2, 60, what="the start of reading after the rebalance")
        in_postgres.publish(*everywhere)
        if careless:
            # The next rebalance would hide the gap: every partition is then read from its stored offset.
            worker.says("reading again", 60)
    in_postgres.caught_up()
    assert ("reading again" in worker.log) is bool(careless), worker.log
