"""`outbox.pressure()` with the status of a real worker: running, stopped, failed, suspended, killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pymongo import AsyncMongoClient

from helpers.service import Service
from helpers.shop import Shop
from helpers.users import Users, close_users, open_users
from helpers.worker import WorkerProcess, Workers, put_pipeline, suspended
from tailrace.outbox import Outbox, Pressure
from tailrace.testkit.stack import KafkaBroker, MongoServer, wait_until

SECONDS = 120
Measure = Callable[[], Pressure]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "pipelines"


def in_postgres(shop: Shop, outbox: Outbox) -> Pressure:
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        return outbox.pressure(connection)


def in_mongo(users: Users, outbox: Outbox) -> Pressure:
    with users.client() as client, client.start_session() as session:
        return outbox.pressure(session)


def reached(measure: Measure, condition: Callable[[Pressure], Any], what: str) -> Pressure:
    """Waits until the pressure fulfils a condition, and returns it."""
    last: list[Pressure] = []

    def fulfilled() -> bool:
        last[:] = [measure()]
        return bool(condition(last[0]))

    try:
        wait_until(fulfilled, SECONDS)
    except Exception as error:
        raise AssertionError(f"{what}: {last}") from error
    return last[0]


def started(workers: Workers, folder: Path, service: Service) -> WorkerProcess:
    put_pipeline(folder, service)
    (folder / "broken.yaml").write_text("pipeline: broken\nkafka: {bootstrap: 'localhost:1'}\n")
    worker = workers.start(folder)
    worker.is_in(service.name, "RUNNING")
    return worker


def test_postgres(workers: Workers, folder: Path, shop: Shop) -> None:
    worker = started(workers, folder, shop)
    outbox = Outbox(table="outbox", pipeline=shop.name, worker=worker.url)

    def measure() -> Pressure:
        return in_postgres(shop, outbox)

    running = reached(measure, lambda found: found.running and found.state, "running")
    assert (running.state, running.remedy) == ("RUNNING", None)
    assert f"reads the slot {shop.slot}; the pipeline {shop.name} is RUNNING" in running.explanation
    # A pipeline that cannot start: the worker knows why, and the database only that there is no slot.
    broken = in_postgres(shop, Outbox(table="outbox", pipeline="broken", worker=worker.url))
    assert (broken.state, broken.running, broken.lag_bytes) == ("FAILED", False, None)
    assert "there is no slot" in broken.explanation
    assert "source" in broken.explanation
    assert broken.remedy
    unknown = in_postgres(shop, Outbox(table="outbox", pipeline="other", worker=worker.url))
    assert (unknown.state, unknown.running) == (None, None)
    assert shop.name in (unknown.remedy or "")
    worker.change(shop.name, "stop")
    stopped = reached(measure, lambda found: found.state == "STOPPED" and not found.running, "stopped")
    assert stopped.running is False
    assert f"POST {worker.url}/api/v1/pipelines/{shop.name}/resume" in (stopped.remedy or "")
    assert "nobody reads the slot" in stopped.explanation
    worker.change(shop.name, "resume")
    reached(measure, lambda found: found.state == "RUNNING" and found.running, "resumed")
    worker.kill()
    killed = reached(measure, lambda found: found.state is None and found.running is False, "killed")
    assert "the connector is not running" in killed.explanation
    assert f"the worker at {worker.url} does not answer (Connection refused)" in killed.explanation
    assert "Start the worker" in (killed.remedy or "")
    assert killed.lag_bytes is not None


@pytest.mark.slow
def test_mongodb_without_marks(workers: Workers, folder: Path, users: Users) -> None:
    """Nothing in the database shows it: all that is known comes from the worker."""
    worker = started(workers, folder, users)
    outbox = Outbox(layout="document", table=f"{users.database}.outbox", pipeline=users.name, worker=worker.url)

    def measure() -> Pressure:
        return in_mongo(users, outbox)

    running = reached(measure, lambda found: found.running and found.lag_seconds is not None, "running, with a lag")
    assert (running.state, running.remedy) == ("RUNNING", None)
    assert "without row marks" in running.explanation
    broken = in_mongo(users, Outbox(layout="document", table="x.outbox", pipeline="broken", worker=worker.url))
    assert (broken.state, broken.running, bool(broken.remedy)) == ("FAILED", False, True)
    worker.change(users.name, "pause")
    paused = reached(measure, lambda found: found.state == "PAUSED", "paused")
    assert (paused.running, paused.lag_seconds) == (False, None)
    assert "/resume" in (paused.remedy or "")
    worker.kill()
    killed = reached(measure, lambda found: found.state is None, "killed")
    assert (killed.running, killed.lag_seconds, killed.pending_events) == (None, None, None)
    assert "does not answer (Connection refused)" in killed.explanation
    assert "Start the worker" in (killed.remedy or "")


def test_mongodb_with_row_marks_and_a_worker_that_hangs(workers: Workers, folder: Path, users: Users) -> None:
    """A suspended worker accepts connections and answers nothing. What the documents show stays known."""
    users.configure(marks="rows")
    worker = started(workers, folder, users)
    outbox = Outbox(
        layout="document", table=f"{users.database}.outbox", pipeline=users.name, marks="rows", worker=worker.url
    )
    users.insert()

    def measure() -> Pressure:
        return in_mongo(users, outbox)

    marked = reached(measure, lambda found: found.running and found.pending_events == 0, "running, all marked")
    assert marked.explanation == f"all documents are marked; the pipeline {users.name} is RUNNING"
    worker.change(users.name, "stop")
    reached(measure, lambda found: found.state == "STOPPED", "stopped")
    users.insert()
    pending = measure()
    assert (pending.running, pending.pending_events) == (False, 1)
    with suspended(worker.process.pid):
        hung = reached(measure, lambda found: found.state is None, "suspended")
    assert (hung.running, hung.pending_events) == (None, 1)
    assert "does not answer (timed out)" in hung.explanation
    reached(measure, lambda found: found.state == "STOPPED", "answering again")


@pytest.fixture
def guests(mongo: MongoServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Users]:
    """A users service in a folder of its own, beside a shop."""
    (tmp_path / "guests").mkdir()
    users = open_users(mongo, kafka, tmp_path / "guests")
    yield users
    close_users(users)


def test_asyncio_drivers(workers: Workers, folder: Path, shop: Shop, guests: Users) -> None:
    """Nothing blocks the event loop: the worker is asked in another thread."""
    users = guests
    put_pipeline(folder, users)
    worker = started(workers, folder, shop)
    worker.is_in(users.name, "RUNNING")
    tables = Outbox(table="outbox", pipeline=shop.name, worker=worker.url)
    documents = Outbox(layout="document", table=f"{users.database}.outbox", pipeline=users.name, worker=worker.url)

    async def test() -> tuple[Pressure, Pressure]:
        async with (
            await psycopg.AsyncConnection.connect(shop.dsn, autocommit=True) as connection,
            AsyncMongoClient[dict[str, Any]](users.uri) as client,
            client.start_session() as session,
        ):
            waiting: list[Any] = [tables.pressure(connection), documents.pressure(session)]
            found: list[Pressure] = await asyncio.gather(*waiting)
            return found[0], found[1]

    assert [(each.state, each.running) for each in asyncio.run(test())] == [("RUNNING", True)] * 2
