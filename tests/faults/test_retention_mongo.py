"""Retention of outbox documents of MongoDB."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

from helpers import warm_processes as warm
from helpers.command import Tailrace
from helpers.projection import Worker
from helpers.users import Users
from tailrace import failpoints
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import header, read_all
from tailrace.testkit.workload.users import OUTBOX, outbox_document
from tailrace.testkit.workload.writer import WorkloadEvent


@pytest.fixture(autouse=True)
def alone(users: Users) -> None:
    """A separate offsets topic, because retention reads all positions on it."""
    users.configure(kafka={"offsets_topic": f"{users.name}.offsets"})


def old_documents(users: Users, count: int) -> list[str]:
    begin = datetime.now(UTC) - timedelta(days=200)
    events = [WorkloadEvent(str(uuid.uuid4()), f"u{number % 7}", number + 1, valid=True) for number in range(count)]
    documents = [
        outbox_document(event, topic=users.topic, at=begin + timedelta(seconds=number))
        for number, event in enumerate(events)
    ]
    with users.client() as client:
        client[users.database][OUTBOX].insert_many(documents)
    return [event.id for event in events]


def arrived(users: Users, *events: str, topic: str = "") -> None:
    place = [topic or users.topic]
    wait_until(
        lambda: {header(each, "id") for each in read_all(users.kafka.bootstrap, place)} >= set(events),
        120,
        what="the records",
    )


def count(users: Users, collection: str) -> int:
    with users.client() as client:
        return client[users.database][collection].count_documents({})


@pytest.mark.slow
def test_documents_are_deleted_by_age_and_by_confirmation(users: Users, tailrace: Tailrace) -> None:
    users.configure(retention={"after": "90d", "batch_rows": 7})
    connector = users.start()
    old, new = old_documents(users, 20), users.insert()
    bad = users.insert(payload={"wrong": True}, created_at=datetime(2020, 1, 1, tzinfo=UTC))
    arrived(users, *old, new)
    arrived(users, bad, topic=users.letters)
    planned = tailrace("retention", "plan", users.file)
    assert (planned["rows"], planned["in_outbox"]) == (20, 22)
    assert {name: kept for name, kept in planned["kept"].items() if kept} == {"too_young": 1, "dead_lettered": 1}
    assert count(users, "tailrace_purged") == 0
    assert tailrace("retention", "apply", users.file)["rows"] == 20
    assert users.in_outbox() == {new, bad}
    # Deletes are not published, and verify knows of them.
    arrived(users, last := users.insert())
    assert len(read_all(users.kafka.bootstrap, [users.topic])) == 22
    result = tailrace("verify", users.file)
    assert (result["clean"], result["only_on_kafka"]) == (True, 20)
    assert any("20 rows were deleted by retention" in note for note in result["notes"])
    planned = tailrace("replay", "plan", users.file, "--from", "201d", "--from-table", "--shadow", ".shadow")
    assert any("20 rows of that time were deleted by retention" in note for note in planned["notes"])
    # Documents that the pipeline has not passed stay.
    assert connector.stop() == 0
    behind = old_documents(users, 3)
    assert tailrace("retention", "apply", users.file)["rows"] == 0
    assert users.in_outbox() == {new, bad, last, *behind}


@pytest.mark.slow
@pytest.mark.parametrize("kill", failpoints.RETAINING)
def test_killed_at_every_step(users: Users, tailrace: Tailrace, kill: str) -> None:
    topic = f"{users.name}.confirmed"
    users.kafka.create_topic(topic, 2)
    users.configure(retention={"confirmations": {"topic": topic, "delay": 0, "keep_unknown": 0}, "batch_rows": 10})
    users.start()
    events = [*old_documents(users, 25), kept := users.insert()]
    arrived(users, *events)
    producer = Producer({"bootstrap.servers": users.kafka.bootstrap})
    for event in (*events[:25], events[0], "nobody"):
        producer.produce(topic, key=event, value=b"{}")
    assert producer.flush(30) == 0
    warm.killed("retention", "apply", users.file, at=kill)
    left = len(users.in_outbox() - {kept})
    assert left == {failpoints.RETENTION_COMMITTED: 15}.get(kill, 25)
    applied = tailrace("retention", "apply", users.file)
    assert (applied["rows"], applied["kept"]["not_confirmed"], applied["forgotten"]) == (left, 0, 1)
    assert users.in_outbox() == {kept}
    assert count(users, "tailrace_confirmations") == 0
    with users.client() as client:
        assert [each["rows"] for each in client[users.database]["tailrace_purged"].find()] == [25]
    assert tailrace("retention", "plan", users.file)["kept"]["not_confirmed"] == 1


APP = """
from tailrace.projections import MongoStore, Projection, projection_app

app = projection_app({name!r}, broker="kafka://{bootstrap}")

async def ignore(event, effects):
    pass

for name in {projections!r}:
    Projection(app, {topic!r}, name=name, store=MongoStore({uri!r}, {database!r})).on()(ignore)
"""


@pytest.mark.slow
def test_documents_stay_until_every_projection_has_passed_them(users: Users) -> None:
    name = f"app_{users.name}"

    def declare(*projections: str) -> None:
        text = APP.format(
            name=users.name,
            bootstrap=users.kafka.bootstrap,
            projections=projections,
            topic=users.topic,
            uri=users.mongo.uri,
            database=f"{users.database}_read",
        )
        (users.folder / f"{name}.py").write_text(text)

    def retention(verb: str) -> dict[str, Any]:
        ran = warm.run("retention", verb, str(users.file), "--json", cwd=users.folder, modules=warm.PROJECTION)
        assert ran.returncode == 0, ran
        found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return found

    first, second = f"{users.name}-first", f"{users.name}-second"
    declare(first)
    users.configure(retention={"consumers": [f"{name}:app"]})
    users.start()
    arrived(users, *old_documents(users, 10))
    assert retention("apply")["consumers"] == {first: 10}
    worker = Worker(users.folder, users.folder / "worker.log", f"{name}:app")
    try:
        wait_until(lambda: retention("plan")["rows"] == 10 if worker.running else True, 90)
        assert worker.stop() == 0, worker.log
        declare(first, second)
        applied = retention("apply")
        assert (applied["rows"], applied["consumers"]) == (0, {second: 10})
        assert len(users.in_outbox()) == 10
        worker = Worker(users.folder, users.folder / "worker.log", f"{name}:app")
        wait_until(lambda: retention("plan")["rows"] == 10 if worker.running else True, 90)
        assert worker.stop() == 0, worker.log
        arrived(users, behind := users.insert())
        applied = retention("apply")
        assert (applied["rows"], applied["kept"]["consumer_behind"]) == (10, 1)
        assert users.in_outbox() == {behind}
    finally:
        worker.kill()
        with users.client() as client:
            client.drop_database(f"{users.database}_read")
