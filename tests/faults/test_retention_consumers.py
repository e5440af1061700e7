"""Retention that waits for projections: rows stay until every projection has passed their events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from helpers import warm_processes as warm
from helpers.projection import Worker
from helpers.shop import Shop
from tailrace.projections.core.store import Partition
from tailrace.projections.postgres.store import PostgresStore
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all

VALID = '{"order": "a", "revision": 1, "amount": 1.50, "currency": "EUR"}'
APP = """
from tailrace.projections import PostgresStore, Projection, projection_app

app = projection_app({name!r}, broker="kafka://{bootstrap}")
TABLES = "CREATE TABLE IF NOT EXISTS seen (id text PRIMARY KEY)"
projection = Projection(app, {topic!r}, "elsewhere", store=PostgresStore({dsn!r}, schema="read", tables=TABLES))
{more}

@projection.on()
async def note(event, effects):
    effects.upsert("seen", {{"id": event.id}}, {{}})
"""
SECOND = """
other = Projection(app, {topic!r}, name="{name}-second", store=PostgresStore({dsn!r}, schema="read"))

@other.on()
async def ignore(event, effects):
    pass
"""


ROCKS = """
from tailrace.projections import Projection, RocksStore, projection_app

app = projection_app({name!r}, broker="kafka://{bootstrap}")
projection = Projection(app, {topic!r}, store=RocksStore("rocks", families=["seen"]))
{more}

@projection.on()
async def note(event, effects):
    effects.put("seen", event.id.encode(), b"")
"""


class Consumed:
    """A shop, and an app of projections that retention waits for."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.module = f"app_{shop.name}"
        self.name = f"{shop.name}-summary"
        self.declare("")
        shop.configure(kafka={"offsets_topic": f"{shop.name}.offsets"}, retention={"consumers": [f"{self.module}:app"]})

    def declare(self, more: str, app: str = APP) -> None:
        given = {"name": self.name, "topic": self.shop.topic, "dsn": self.shop.dsn}
        text = app.format(**given, bootstrap=self.shop.kafka.bootstrap, more=more.format(**given))
        (self.shop.folder / f"{self.module}.py").write_text(text)

    def work(self) -> Worker:
        worker = Worker(self.shop.folder, self.shop.folder / "worker.log", f"{self.module}:app")
        self.shop.connectors.append(worker)
        return worker

    def command(self, verb: str, code: int = 0) -> dict[str, Any]:
        ran = warm.run("retention", verb, str(self.shop.file), "--json", cwd=self.shop.folder, modules=warm.PROJECTION)
        assert ran.returncode == code, ran
        found: dict[str, Any] = json.loads((ran.stdout or ran.stderr).splitlines()[-1])
        return found

    def insert(self, count: int) -> set[str]:
        """Inserts events and waits for their records."""
        events = {self.shop.insert(VALID, key=f"k{number}") for number in range(count)}
        wait_until(lambda: self._published() >= events, 60, what="the records")
        return events

    def _published(self) -> set[str]:
        return {header(each, "id") for each in read_all(self.shop.kafka.bootstrap, [self.shop.topic])}

    def move(self, offsets: Mapping[int, int | None], name: str = "") -> None:
        """Sets the stored offsets of a projection."""

        async def reset() -> None:
            store = PostgresStore(self.shop.dsn, schema="read")
            await store.open(name or self.name)
            await store.reset({Partition(self.shop.topic, number): offset for number, offset in offsets.items()})
            await store.close()

        asyncio.run(reset())


@pytest.fixture
def consumed(shop: Shop) -> Consumed:
    return Consumed(shop)


@pytest.mark.slow
def test_rows_stay_until_the_projection_has_passed_them(consumed: Consumed) -> None:
    shop = consumed.shop
    shop.start()
    first = consumed.insert(10)
    planned = consumed.command("plan")
    assert (planned["rows"], planned["consumers"]) == (0, {consumed.name: 10})
    assert any("it has never read" in note for note in planned["notes"])
    worker = consumed.work()
    wait_until(lambda: len(shop.execute("SELECT FROM read.seen")) == 10 if worker.running else True, 60)
    assert worker.stop() == 0, worker.log
    second = consumed.insert(5)
    planned = consumed.command("plan")
    assert (planned["rows"], planned["consumers"]) == (10, {consumed.name: 5})
    assert consumed.command("apply")["rows"] == 10
    assert shop.in_outbox() == second
    # Behind a record that the topic has deleted, it is not known what it has passed.
    consumed.declare(SECOND)
    planned = consumed.command("plan")
    assert planned["consumers"] == {f"{consumed.name}-second": 5}
    consumed.declare("")
    worker = consumed.work()
    wait_until(lambda: len(shop.execute("SELECT FROM read.seen")) == 15 if worker.running else True, 60)
    assert worker.stop() == 0, worker.log
    assert consumed.command("apply")["rows"] == 5
    assert first.isdisjoint(shop.in_outbox())


@pytest.mark.slow
def test_a_projection_in_rocksdb_is_asked_while_its_worker_runs(consumed: Consumed) -> None:
    """One process can open its folder; retention only reads it."""
    shop = consumed.shop
    consumed.declare("", ROCKS)
    shop.start()
    consumed.insert(5)
    assert consumed.command("plan")["consumers"] == {consumed.name: 5}
    assert not (shop.folder / "rocks").exists()
    worker = consumed.work()
    wait_until(lambda: consumed.command("plan")["rows"] == 5, 90)
    assert worker.running, worker.log
    assert consumed.command("apply")["rows"] == 5
    assert worker.stop() == 0, worker.log


@pytest.mark.slow
def test_offsets_that_do_not_fit_the_topic(consumed: Consumed) -> None:
    shop = consumed.shop
    shop.start()
    consumed.insert(10)
    for offsets, why in (({0: 10_000}, "created again"), ({0: None, 1: None, 2: None}, "never read")):
        consumed.move(offsets)
        planned = consumed.command("plan")
        assert (planned["rows"], planned["kept"]["consumer_behind"]) == (0, 10)
        assert any(why in note for note in planned["notes"]), planned["notes"]
    consumed.move({0: 0, 1: 0})
    assert consumed.command("plan")["kept"]["consumer_behind"] == 10


def test_an_app_that_is_gone_or_reads_other_topics(consumed: Consumed) -> None:
    shop = consumed.shop
    shop.start()
    consumed.insert(3)
    shop.configure(retention={"consumers": ["no_such_app:app"]})
    refused = consumed.command("apply", code=2)
    assert "no_such_app" in refused["what"]
    assert len(shop.in_outbox()) == 3
    (shop.folder / "other_app.py").write_text(
        APP.format(name="x", topic="other", dsn=shop.dsn, bootstrap=shop.kafka.bootstrap, more="")
    )
    shop.configure(retention={"consumers": ["other_app:app"]})
    applied = consumed.command("apply")
    assert (applied["rows"], "does not count" in str(applied["notes"])) == (3, True)
