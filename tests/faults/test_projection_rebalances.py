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
from helpers.projection_mutations import CARELESS
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
import asyncio, time
from tailrace.projections.reader.offset_coordinator import OffsetCoordinator
from tailrace.projections.reader.consumer_thread import ConsumerThread
from tailrace.projections.reader.offset_queries import OffsetQueries
from tailrace.projections.reader.reader import EventReader

SITES = [
    (owner, name)
    for owner, names in (
        (ConsumerThread, "_on_assign _on_revoke _assign _read _deliver _release _commit"),
        (OffsetCoordinator, "assigned positions revoked"),
        (EventReader, "_locate _stop_workers"),
        (OffsetQueries, "bounds"),
    )
    for name in names.split()
]
turn = 0

def delayed(owner, name):
    original = getattr(owner, name)
    async def slowly(*args, **named):
        if pauses(owner, name):
            await asyncio.sleep(0.25)
        result = await original(*args, **named)
        if pauses(owner, name):
            await asyncio.sleep(0.25)
        return result
    def in_thread(*args, **named):
        global turn
        turn += name == "_on_revoke"
        if pauses(owner, name):
            time.sleep(0.25)
        result = original(*args, **named)
        if pauses(owner, name):
            time.sleep(0.25)
        return result
    setattr(owner, name, in_thread if owner is ConsumerThread else slowly)

def pauses(*site):
    # In each round at another site, and at no other, so that different steps overlap.
    return SITES[turn % len(SITES)] == site

for site in SITES:
    delayed(*site)
"""
LATE = """
from pathlib import Path
from tailrace.projections.reader.reader import EventReader

deliver, locate, kept = EventReader.deliver, EventReader._locate, []

def late(self, generation, records, passed):
    # The event loop comes to the last record of each partition only after the next assignment.
    if Path("hold").exists() or kept:
        kept.append((generation, {each: found[-1:] for each, found in records.items()}, {}))
        print("fetched", flush=True)
        self._thread.delivered()
    else:
        deliver(self, generation, records, passed)

async def then_deliver(self, generation, partitions):
    await locate(self, generation, partitions)
    while kept:
        self._deliver(*kept.pop())
        print("late", flush=True)

EventReader.deliver, EventReader._locate = late, then_deliver
"""


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
            "group.id": projected.group,
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
def test_records_of_an_ended_assignment_are_not_delivered(in_postgres: Projected, careless: str) -> None:
    """They are fetched again. A careless reader would skip the records before them: the test can fail."""
    in_postgres.configure("within=0.01", LATE + careless, app=APP.replace(*QUICK))
    everywhere = [{"key": key} for key in KEYS]
    in_postgres.publish(*everywhere)
    worker = in_postgres.start()
    in_postgres.caught_up()
    hold = in_postgres.folder / "hold"
    hold.touch()
    in_postgres.publish(*everywhere, *everywhere)
    worker.says("fetched", 60)
    hold.unlink()
    with visitor(in_postgres) as member:
        wait_until(lambda: member.poll(0.05) or "late" in worker.log, 60, what="the late delivery")
    wait_until(lambda: worker.log.count('"reading"') >= 3, 60, what="the worker to have all partitions again")
    last = in_postgres.publish(*everywhere)
    wait_until(lambda: {ids[-1] for ids in in_postgres.state().values()} == set(last), 60, what="the last events")
    assert (in_postgres.state() == in_postgres.fold()) is not bool(careless)
