"""Retention of outbox documents of MongoDB."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer

from helpers import warm_processes as warm
from helpers.command import Tailrace
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
