"""From committed transactions in MongoDB to Kafka, without faults: content, order and form of the records."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from helpers.users import Users, close_users, open_users
from tailrace.positions.mongo import ClusterTime
from tailrace.testkit.oracle import OracleVerdict, WriteOutcome
from tailrace.testkit.stack import KafkaBroker, MongoServer, ServerChoice, wait_until
from tailrace.testkit.topic_reader import header, read_all
from tailrace.testkit.workload.users import UsersWriter, create_users, ids_in_collection
from tailrace.testkit.workload.writer import Mix


@pytest.fixture
def two(mongo: MongoServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Users]:
    """A users service with two outbox collections, read by one stream."""
    users = open_users(mongo, kafka, tmp_path, collections=("outbox", "outbox_eu"))
    yield users
    close_users(users)


def exactly_once(verdict: OracleVerdict) -> None:
    assert verdict.ok, str(verdict)
    assert min(verdict.committed, verdict.rolled_back, verdict.published, verdict.dead_lettered) > 0, str(verdict)


def published(users: Users, count: int = 1) -> list[Message]:
    return wait_until(
        lambda: [each for each in [read_all(users.kafka.bootstrap, [users.topic])] if len(each) == count],
        60,
        what=f"{count} records",
    )[0]


def test_committed_events_arrive_once_and_in_order_and_aborted_ones_never(users: Users) -> None:
    users.start()
    writer = users.writer(mix=Mix(rollback=0.2, invalid=0.1))
    for _ in range(60):
        writer.transaction()
    exactly_once(users.caught_up())
    outcomes = {outcome: [each for each in writer.written if each.outcome is outcome] for outcome in WriteOutcome}
    assert outcomes[WriteOutcome.UNKNOWN] == []
    assert {each.id for each in outcomes[WriteOutcome.COMMITTED]} == users.in_outbox()
    # Independent of the oracle: the revisions of each user only grow, as its consumers see them.
    revisions: defaultdict[bytes, list[int]] = defaultdict(list)
    messages = read_all(users.kafka.bootstrap, [users.topic])
    for message in sorted(messages, key=lambda each: (each.partition() or 0, each.offset() or 0)):
        revisions[message.key() or b""].append(json.loads(message.value() or b"")["revision"])
    assert max(map(len, revisions.values())) > 1
    assert all(each == sorted(set(each)) for each in revisions.values())


def test_several_writers_at_once(users: Users) -> None:
    users.start()
    for _ in range(3):
        users.writer(mix=Mix(events_per_transaction=10)).start(rate=50)
    wait_until(lambda: len(users.published()) > 200, 60, what="a few hundred events")
    for writer in users.writers:
        writer.stop()
    assert users.caught_up().ok


def test_the_record_has_the_documented_form(users: Users) -> None:
    connector = users.start()
    event = users.insert("user-7", seq=3, trace="abc")
    (message,) = published(users)
    assert message.key() == b"user-7"
    assert json.loads(message.value() or b"") == {
        "user": "user-7", "revision": 3, "email": "user-7@example.com", "address": {"city": "Oslo", "country": "NO"},
    }  # fmt: skip
    headers = {name: bytes(value).decode() for name, value in message.headers() or []}
    position, created = headers.pop("position"), headers.pop("created_at")
    kind, at_ms = message.timestamp()
    assert kind == TIMESTAMP_CREATE_TIME
    assert headers == {
        "id": event, "type": "UserChanged", "timestamp": str(at_ms), "entity_id": "user-7", "entity_version": "3",
        "topic": users.topic, "trace": "abc", "tailrace.pipeline": users.name,
    }  # fmt: skip
    assert abs(datetime.fromisoformat(created).timestamp() * 1000 - at_ms) < 60_000
    assert connector.stop() == 0
    time, _, ordinal = position.partition(":")
    assert ordinal == "1"
    assert ClusterTime.parse(time).pair <= users.positions()[-1].time.pair


def test_a_broken_payload_becomes_a_dead_letter_and_delays_no_other_event(users: Users) -> None:
    users.start()
    good = [users.insert(seq=1)]
    bad = users.insert(seq=2, payload={"user": "k", "revision": "two"})
    good.append(users.insert(seq=3))
    assert [header(message, "id") for message in published(users, 2)] == good
    (letter,) = read_all(users.kafka.bootstrap, [users.letters])
    assert header(letter, "id") == bad
    assert header(letter, "tailrace.reason") == "schema_validation_failed"
    assert json.loads(letter.value() or b"") == {"user": "k", "revision": "two"}


def test_start_beginning_publishes_existing_documents(users: Users) -> None:
    """Existing documents are published first, then those written during and after the read."""
    users.configure(source={"start": "beginning"})
    writer = users.writer(mix=Mix(rollback=0.2, invalid=0.1))
    for _ in range(60):
        writer.transaction()
    before = {entry.id for entry in writer.written if entry.outcome is WriteOutcome.COMMITTED and entry.valid}
    writer.start(rate=100)
    users.start()
    wait_until(lambda: len(users.published()) > len(before) + 50, 60, what="events from behind the start")
    writer.stop()
    exactly_once(users.caught_up())
    assert before <= {seen.id for seen in users.published()}


def test_start_now_leaves_out_existing_documents(users: Users) -> None:
    users.insert(seq=1)
    users.start()
    later = users.insert(seq=2)
    (message,) = published(users)
    assert header(message, "id") == later


@pytest.mark.parametrize("start", ["now", "beginning"])
def test_two_collections_in_one_stream(two: Users, start: str) -> None:
    two.configure(source={"start": start})
    writer = two.writer(mix=Mix(rollback=0.2, invalid=0.1))
    if start == "beginning":
        for _ in range(40):
            writer.transaction()
    two.start()
    for _ in range(40):
        writer.transaction()
    exactly_once(two.caught_up())
    with two.client() as client:
        counts = [client[two.database][name].count_documents({}) for name in two.collections]
    assert min(counts) > 0
    assert sum(counts) == len(two.published()) + len(two.dead_lettered())


def test_a_restart_continues_at_the_stored_position(users: Users) -> None:
    writer = users.writer()
    assert users.start().stop() == 0
    for _ in range(30):
        writer.transaction()
    users.start()
    assert users.caught_up().ok


def test_the_writer_reports_true_outcomes_even_if_the_server_is_killed() -> None:
    """The oracle's verdict relies on it: only writes with an unknown outcome may be present or absent."""
    with MongoServer(choice=ServerChoice.LOCAL) as server:
        create_users(server.uri, "service")
        writer = UsersWriter(server.uri, "service")
        writer.start(rate=500)
        for _ in range(3):
            so_far = len(writer.written)
            wait_until(lambda seen=so_far: len(writer.written) > seen + 50, 60, what="further transactions")
            server.kill()
            server.start()
        so_far = len(writer.written)
        wait_until(lambda: len(writer.written) > so_far + 50, 60, what="transactions after the last start")
        writer.stop()
        found = ids_in_collection(server.uri, "service")
    word = {outcome: {each.id for each in writer.written if each.outcome is outcome} for outcome in WriteOutcome}
    assert word[WriteOutcome.COMMITTED] <= found
    assert not word[WriteOutcome.ROLLED_BACK] & found
    assert found <= word[WriteOutcome.COMMITTED] | word[WriteOutcome.UNKNOWN]
    assert min(len(word[WriteOutcome.COMMITTED]), len(word[WriteOutcome.ROLLED_BACK])) > 0
