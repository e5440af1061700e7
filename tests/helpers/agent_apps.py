"""Apps for `Projected` whose history is written by an agent of `app.events(…)` instead of handlers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pymongo
import pytest

from helpers.projection import Projected
from tailrace.testkit.stack import KafkaBroker, MongoServer, PostgresServer

POSTGRES = """
import asyncio
from tailrace.projections import PostgresStore, projection_app

app = projection_app(
    {name!r}, broker="kafka://{bootstrap}", broker_session_timeout=6, broker_heartbeat_interval=0.5{app_settings}
)
TABLES = "CREATE TABLE IF NOT EXISTS history (key text PRIMARY KEY, ids text[] NOT NULL)"
store = PostgresStore({dsn!r}, schema={schema!r}, tables=TABLES)
channel = app.events({topic!r}, store=store, {settings})
projection = channel.projection

async def append(event, effects):
    if event.data.get("fail"):
        raise ValueError("this one fails")
    await effects.execute(
        "INSERT INTO history VALUES (%s, ARRAY[%s]) ON CONFLICT (key) DO UPDATE SET ids = history.ids || EXCLUDED.ids",
        (event.key.decode(), event.id),
    )
"""
MONGO = """
import asyncio
from tailrace.projections import MongoStore, projection_app

app = projection_app(
    {name!r}, broker="kafka://{bootstrap}", broker_session_timeout=6, broker_heartbeat_interval=0.5{app_settings}
)
store = MongoStore({dsn!r}, {schema!r}, collections={{"history": []}})
channel = app.events({topic!r}, store=store, {settings})
projection = channel.projection

async def append(event, effects):
    if event.data.get("fail"):
        raise ValueError("this one fails")
    await effects.collection("history").update_one(
        {{"_id": event.key.decode()}}, {{"$push": {{"ids": event.id}}}}, upsert=True
    )
"""
EACH = """
@app.agent(channel)
async def histories(stream):
    async for event in stream:
        async with event.once() as effects:
            await append(event, effects)
{more}
"""
SEVERAL = EACH.replace("@app.agent(channel)", "@app.agent(channel, concurrency=3)")
BATCHES = """
@app.agent(channel)
async def histories(stream):
    async for batch in stream.take(7, within=0.01):
        async with batch.once() as effects:
            for event in batch:
                await append(event, effects)
{more}
"""
WAYS = {"each": EACH, "several tasks": SEVERAL, "batches": BATCHES}


class AgentHistory(Projected):
    """The history in Postgres or MongoDB, written by an agent."""

    def __init__(
        self,
        postgres: PostgresServer,
        kafka: KafkaBroker,
        folder: Path,
        mongo: MongoServer | None = None,
        *,
        partitions: int = 3,
    ) -> None:
        super().__init__(postgres, kafka, folder, partitions=partitions)
        self.mongo = mongo
        if mongo is not None:
            self.dsn = mongo.uri

    def use(self, way: str, settings: str = "", more: str = "", *, app_settings: str = "") -> None:
        """Writes the app with one of `WAYS`, or with the text of an agent."""
        store = (POSTGRES if self.mongo is None else MONGO).replace("{app_settings}", app_settings)
        self.configure(settings, more, app=store + WAYS.get(way, way))

    def state(self) -> dict[str, list[str]]:
        if self.mongo is None:
            return super().state()
        with pymongo.MongoClient[dict[str, list[str]]](self.mongo.uri) as client:
            return {str(each["_id"]): each["ids"] for each in client[self.name].history.find()}


@pytest.fixture
def history(postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[AgentHistory]:
    made = AgentHistory(postgres, kafka, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["postgres", "mongo"])
def histories(request: pytest.FixtureRequest, kafka: KafkaBroker, tmp_path: Path) -> Iterator[AgentHistory]:
    """The same in each store."""
    postgres = request.getfixturevalue("postgres")
    mongo = request.getfixturevalue("mongo") if request.param == "mongo" else None
    made = AgentHistory(postgres, kafka, tmp_path, mongo)
    yield made
    made.close()
