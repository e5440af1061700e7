"""Agents and projections of one app, in both stores, while workers start, stop, sleep and are killed at random.

`TAILRACE_RANDOM_SECONDS=600` runs it for ten minutes, `TAILRACE_RANDOM_SEED` with other choices.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pymongo
import pytest

from helpers.projection import Projected, Worker
from tailrace.testkit.stack import KafkaBroker, MongoServer, PostgresServer, wait_until

log = logging.getLogger(__name__)
SECONDS = float(os.environ.get("TAILRACE_RANDOM_SECONDS", "40"))
SEED = int(os.environ.get("TAILRACE_RANDOM_SEED", "20"))
SESSION_SECONDS = 6
PAUSE_SECONDS = 0.1
"""Between two actions: more events would only be a longer backlog at the end."""
MOST_WORKERS = 3
KEYS = [f"o-{number}" for number in range(60)]
PROJECTIONS = ("pg-each", "pg-batches", "pg-declared", "mongo-each", "mongo-batches", "mongo-declared")
APP = """
import asyncio, random
from tailrace.backoff import Backoff
from tailrace.projections import MongoStore, PostgresStore, Projection, projection_app

app = projection_app(
    {name!r}, broker="kafka://{bootstrap}", broker_session_timeout=6, broker_heartbeat_interval=0.5
)
TABLES = "CREATE TABLE IF NOT EXISTS history (key text PRIMARY KEY, ids text[] NOT NULL)"
common = dict(max_attempts=1000, backoff=Backoff(base=0.02, maximum=0.2), {settings})

def pg(part):
    return PostgresStore({dsn!r}, schema={schema!r} + "_" + part, tables=TABLES)

def mongo(part):
    return MongoStore(MONGO, {schema!r} + "_" + part, collections={{"history": []}})

async def pg_append(event, effects):
    await effects.execute(
        "INSERT INTO history VALUES (%s, ARRAY[%s]) ON CONFLICT (key) DO UPDATE SET ids = history.ids || EXCLUDED.ids",
        (event.key.decode(), event.id),
    )
    await sometimes()

async def mongo_append(event, effects):
    await effects.collection("history").update_one(
        {{"_id": event.key.decode()}}, {{"$push": {{"ids": event.id}}}}, upsert=True
    )
    await sometimes()

async def sometimes():
    choice = random.random()
    if choice < 0.01:
        raise ValueError("by chance")
    if choice < 0.05:
        await asyncio.sleep(0.02)

def declare(part, store, append):
    @app.agent(app.events({topic!r}, store=store(part + "_each"), name=part + "-each", **common),
               name=part + "-each", concurrency=2)
    async def each(stream):
        async for event in stream:
            async with event.once() as effects:
                await append(event, effects)

    @app.agent(app.events({topic!r}, store=store(part + "_batches"), name=part + "-batches", **common),
               name=part + "-batches")
    async def batches(stream):
        async for batch in stream.take(20, within=0.02):
            async with batch.once() as effects:
                for event in batch:
                    await append(event, effects)

    declared = Projection(app, {topic!r}, store=store(part + "_declared"), name=part + "-declared", **common)
    declared.on()(append)

declare("pg", pg, pg_append)
declare("mongo", mongo, mongo_append)
{more}
"""


class RandomRun(Projected):
    """The histories of six projections of one topic."""

    def __init__(self, postgres: PostgresServer, kafka: KafkaBroker, folder: Path, mongo: MongoServer) -> None:
        super().__init__(postgres, kafka, folder, partitions=4)
        self.mongo = mongo
        self.done: Counter[str] = Counter()
        self.asleep: dict[Worker, float] = {}
        self.killed: set[Worker] = set()
        self.configure("", app=f"MONGO = {mongo.uri!r}\n" + APP)

    def histories(self) -> dict[str, dict[str, list[str]]]:
        found: dict[str, dict[str, list[str]]] = {}
        with pymongo.MongoClient[dict[str, list[str]]](self.mongo.uri) as client:
            for each in PROJECTIONS:
                if each.startswith("mongo"):
                    database = client[f"{self.name}_{each.replace('-', '_')}"]
                    found[each] = {str(row["_id"]): row["ids"] for row in database.history.find()}
        for each in PROJECTIONS:
            if each.startswith("pg"):
                try:
                    rows = self.execute(f"SELECT key, ids FROM {self.name}_{each.replace('-', '_')}.history")
                except psycopg.errors.UndefinedTable:
                    rows = []
                found[each] = dict(rows)
        return found

    @property
    def awake(self) -> list[Worker]:
        return [each for each in self.workers if each.running and each not in self.asleep]

    def act(self, chance: random.Random) -> None:
        """Does one thing that a cluster does to its workers, or that producers do."""
        for worker, until in list(self.asleep.items()):
            if time.monotonic() >= until:
                worker.process.send_signal(signal.SIGCONT)
                del self.asleep[worker]
                self.done["awake"] += 1
        action = chance.choices(("publish", "start", "stop", "kill", "sleep"), (10, 3, 1, 2, 2))[0]
        worker = chance.choice(self.awake) if self.awake else None
        running = len(self.awake) + len(self.asleep)
        if action == "publish":
            self.publish_some(chance)
        elif action == "start" and running < MOST_WORKERS:
            self.start(wait=chance.random() < 0.3)
        elif action == "start" or worker is None or len(self.awake) < 2:
            return
        elif action == "stop":
            assert worker.stop() == 0, worker.log[-4000:]
        elif action == "kill":
            self.killed.add(worker)
            worker.kill()
        elif action == "sleep":
            self.asleep[worker] = time.monotonic() + chance.choice((0.5, 2.0, SESSION_SECONDS + 3.0))
            worker.process.send_signal(signal.SIGSTOP)
        self.done[action] += 1

    def publish_some(self, chance: random.Random) -> None:
        events: list[dict[str, object]] = [{"key": chance.choice(KEYS)} for _ in range(chance.randint(1, 12))]
        if chance.random() < 0.1:
            self.publish(*events, commit=False)
            return
        ids = self.publish(*events)
        if chance.random() < 0.2:
            again = chance.randrange(len(events))
            headers = {"tailrace.replay": "r"} if chance.random() < 0.5 else {}
            self.publish({**events[again], "id": ids[again], "headers": headers})

    def require_alive(self) -> None:
        for worker in self.workers:
            if not worker.running and worker not in self.killed:
                assert worker.process.wait(1) == 0, worker.log[-4000:]


@pytest.fixture
def run(postgres: PostgresServer, kafka: KafkaBroker, mongo: MongoServer, tmp_path: Path) -> Iterator[RandomRun]:
    made = RandomRun(postgres, kafka, tmp_path, mongo)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 400)
def test_workers_that_start_stop_sleep_and_are_killed_at_random(run: RandomRun) -> None:
    """Nothing is skipped, doubled or out of order by a fold of the topic from its beginning."""
    chance = random.Random(SEED)
    run.start()
    run.start()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(PAUSE_SECONDS)
        run.act(chance)
        run.require_alive()
        if not run.awake:
            run.start(wait=False)
    for worker in run.asleep:
        worker.process.send_signal(signal.SIGCONT)
    run.asleep.clear()
    expected = run.fold()
    try:
        wait_until(lambda: run.histories() == dict.fromkeys(PROJECTIONS, expected), 300)
    except Exception:
        for name, found in run.histories().items():
            for key, ids in expected.items():
                assert found.get(key) == ids, f"{name} {key}, seed {SEED}, {dict(run.done)}"
        raise
    run.require_alive()
    count = sum(map(len, expected.values()))
    log.info("seed %d: %s, %d events, %d workers", SEED, dict(run.done), count, len(run.workers))
