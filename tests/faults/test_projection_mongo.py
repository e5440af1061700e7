"""Rows 59-61 for a projection in MongoDB, and for a mirror: killed between any two steps."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pymongo
import pytest

from helpers.projection import Projected
from tailrace import failpoints
from tailrace.projections.mongo.swap import SWAP_RENAMED
from tailrace.testkit.stack import KafkaBroker, MongoServer, PostgresServer, wait_until

KEYS = [f"o-{number}" for number in range(6)]
HISTORY = """
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
MIRROR = """
from pymongo import IndexModel
from tailrace.projections import projection_app
from tailrace.projections.mongo.mirror import mirror
from tailrace.projections.mongo.mirror_store import MirrorStore

app = projection_app({name!r}, broker="kafka://{bootstrap}")
indexes = [IndexModel([("key", 1), ("event_time", -1)])]
projection = mirror(app, {topic!r}, store=MirrorStore({dsn!r}, {schema!r}, "events", indexes=indexes), {settings})
{more}
"""


class InMongo(Projected):
    """The same history, in documents."""

    def __init__(self, postgres: PostgresServer, kafka: KafkaBroker, folder: Path, mongo: MongoServer) -> None:
        self.mongo = mongo
        super().__init__(postgres, kafka, folder)
        self.dsn = mongo.uri

    def state(self) -> dict[str, list[str]]:
        with pymongo.MongoClient[dict[str, object]](self.mongo.uri) as client:
            return {str(each["_id"]): each["ids"] for each in client[self.name].history.find()}  # type: ignore[misc]

    def spoil(self) -> None:
        """Changes the data as a wrong handler would: only a rebuild fixes it."""
        with pymongo.MongoClient[dict[str, object]](self.mongo.uri) as client:
            client[self.name].history.update_many({}, {"$push": {"ids": {"$each": ["wrong"], "$position": 0}}})

    def shadow_collections(self) -> list[str]:
        """The collections of an unfinished rebuild."""
        with pymongo.MongoClient[dict[str, object]](self.mongo.uri) as client:
            return [name for name in client[self.name].list_collection_names() if "__next" in name]

    def mirrored(self) -> dict[str, bytes]:
        with pymongo.MongoClient[dict[str, bytes]](self.mongo.uri) as client:
            return {str(each["_id"]): each["raw"] for each in client[self.name].events.find()}


@pytest.fixture
def projected(postgres: PostgresServer, kafka: KafkaBroker, mongo: MongoServer, tmp_path: Path) -> Iterator[InMongo]:
    made = InMongo(postgres, kafka, tmp_path, mongo)
    yield made
    made.close()


@pytest.mark.parametrize("point", [failpoints.PROJECTION_APPLIED, failpoints.PROJECTION_COMMITTED])
def test_killed_at(projected: InMongo, point: str) -> None:
    """An open transaction of a dead worker does not block its successor for as long as the server keeps it."""
    projected.configure("events=7, within=0.01", app=HISTORY)
    chance = random.Random(1)
    for _ in range(4):
        projected.publish(*({"key": chance.choice(KEYS)} for _ in range(20)))
    worker = projected.start(kill=f"{point}:2", wait=False)
    assert worker.ended(120) == -signal.SIGKILL, worker.log
    assert sum(map(len, projected.state().values())) < 80, "it died in the middle"
    projected.start()
    projected.caught_up(50)
    projected.publish({"key": "o-0"})
    projected.caught_up()


@pytest.mark.slow
def test_workers_come_and_go(projected: InMongo) -> None:
    projected.configure("events=5, within=0.02", app=HISTORY)
    chance = random.Random(2)
    projected.start()
    for _ in range(3):
        for _ in range(3):
            projected.publish(*({"key": chance.choice(KEYS)} for _ in range(10)))
        projected.start(wait=False)
        projected.publish(*({"key": chance.choice(KEYS)} for _ in range(10)))
        running = [worker for worker in projected.workers if worker.running]
        if len(running) > 2:
            chance.choice(running).kill()
    projected.caught_up(180)


@pytest.mark.slow
def test_a_rebuild_while_a_worker_runs(projected: InMongo) -> None:
    """If it is killed within the swap, the worker completes it at its next event; else the rebuild does."""
    projected.configure("events=7, within=0.01", app=HISTORY)
    projected.publish(*({"key": KEYS[n % 4]} for n in range(40)))
    live = projected.start()
    projected.caught_up()
    projected.spoil()
    killed = projected.start("--rebuild", kill=f"{SWAP_RENAMED}:2", wait=False)
    assert killed.ended(120) == -signal.SIGKILL, killed.log
    assert projected.shadow_collections(), "it died in the middle"
    projected.publish(*({"key": key} for key in KEYS))
    projected.caught_up()
    wait_until(
        lambda: '"swapped"' in live.log and not projected.shadow_collections(), 60, what="the worker to finish the swap"
    )
    projected.spoil()
    rebuilder = projected.start("--rebuild", wait=False)
    for _ in range(10):
        projected.publish(*({"key": KEYS[n % 4]} for n in range(10)))
    assert rebuilder.ended(180) == 0, rebuilder.log
    assert '"rebuilt"' in rebuilder.log
    projected.publish(*({"key": key} for key in KEYS))
    projected.caught_up()
    assert live.running, live.log
    assert projected.shadow_collections() == []


TWO_REBUILDS = """
import asyncio, pathlib, sys
from tailrace.projections.mongo import swap

REBUILDS = "--rebuild" in sys.argv
IS_LATE = REBUILDS and not pathlib.Path("opened").exists()
rename, open_store = swap._rename, MongoStore.open

async def until(name):
    while not pathlib.Path(name).exists():
        await asyncio.sleep(0.05)

async def slowly(database, state, name):
    await rename(database, state, name)
    pathlib.Path("renamed").touch()
    await until("go-on")

async def late(self, name):
    await open_store(self, name)
    pathlib.Path("opened").touch()
    await until("renamed")

if IS_LATE:
    MongoStore.open = late
elif REBUILDS:
    swap._rename = slowly
"""


def test_partitions_that_are_reassigned_during_the_renames(projected: InMongo) -> None:
    """A second rebuild, which has opened its store before, joins the group after the first rename."""
    projected.configure("events=7, within=0.01", TWO_REBUILDS, app=HISTORY)
    projected.publish(*({"key": KEYS[n % 4]} for n in range(40)))
    live = projected.start()
    projected.caught_up()
    projected.spoil()
    late = projected.start("--rebuild", wait=False)
    wait_until((projected.folder / "opened").exists, 60, what="the late one to open its store")
    first = projected.start("--rebuild", wait=False)
    wait_until((projected.folder / "renamed").exists, 120, what="the first rename")
    live.kill()
    projected.publish(*({"key": key} for key in KEYS * 10))
    assert late.ended(120) == 3, late.log
    assert "is over" in late.log
    (projected.folder / "go-on").touch()
    assert first.ended(120) == 0, first.log
    projected.start()
    projected.caught_up()
    assert projected.shadow_collections() == []


def test_a_failing_event_and_its_neighbours(projected: InMongo) -> None:
    more = """
@projection.on("Bad")
async def bad(event, effects):
    effects.upsert("elsewhere", {"_id": 1}, {"seen": True})
    raise ValueError("no")
"""
    projected.configure("max_attempts=2, within=0.05", more, app=HISTORY)
    [first, bad, last] = projected.publish({"key": "k"}, {"key": "k", "headers": {"type": "Bad"}}, {"key": "k"})
    projected.start()
    wait_until(lambda: projected.state() == {"k": [first, last]}, 120, what="the neighbours")
    assert [said["id"] for said in projected.dead_letters()] == [bad]
    with pymongo.MongoClient[dict[str, object]](projected.mongo.uri) as client:
        assert client[projected.name].elsewhere.count_documents({}) == 0


def test_a_mirror_keeps_every_event_and_a_duplicate_is_success(projected: InMongo) -> None:
    projected.configure("events=7, within=0.05", app=MIRROR)
    ids = []
    for number in range(5):
        ids += projected.publish(*({"key": "k", "value": b'{"n": %d}' % number} for _ in range(10)))
    worker = projected.start(kill=f"{failpoints.PROJECTION_APPLIED}:2", wait=False)
    assert worker.ended(120) == -signal.SIGKILL, worker.log
    projected.publish({"key": "k", "id": ids[0], "value": b"again"}, {"key": "k", "value": b"no json"})
    projected.start()
    wait_until(lambda: len(projected.mirrored()) == 51, 120, what="all of them")
    kept = projected.mirrored()
    assert kept[ids[0]] == b'{"n": 0}'
    assert b"no json" in kept.values()
    assert projected.dead_letters() == []
