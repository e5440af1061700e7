"""Rows 10 and 12 of the fault matrix for MongoDB: stored positions that are lost, forged or corrupt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import NewTopic

from helpers.tiers import mostly_slow
from helpers.users import Users, close_users, open_users
from tailrace import failpoints
from tailrace.testkit.stack import KafkaBroker, MongoServer, ServerChoice, wait_until
from tailrace.testkit.topic_reader import read_all


def arrived(users: Users, event: str) -> None:
    log = users.connectors[-1].log_file
    wait_until(lambda: event in {seen.id for seen in users.published()}, 60, what=f"{event}; the log is in {log}")


def own_offsets_topic(users: Users) -> str:
    """An offsets topic that no other test shares."""
    topic = f"{users.name}.offsets"
    users.configure(kafka={"offsets_topic": topic})
    return topic


def delete(users: Users, topic: str) -> None:
    admin = users.kafka.admin()
    admin.delete_topics([topic])[topic].result(20)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, what="the topic to go")


def create(users: Users, topic: str) -> None:
    """Creates it as another pipeline that shares it would."""
    admin = users.kafka.admin()

    def made() -> bool:
        try:
            admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})])[topic].result(20)
        except KafkaException:
            return False
        return True

    wait_until(made, 60, what="the topic to be created")


def write(users: Users, value: bytes) -> None:
    """Writes a record with the pipeline's key to the offsets topic, as a faulty tool could."""
    producer = Producer({"bootstrap.servers": users.kafka.bootstrap})
    producer.produce("tailrace-offsets", value, users.name.encode())
    assert producer.flush(10) == 0


def worked(users: Users) -> None:
    users.start()
    arrived(users, users.insert("k"))
    assert users.connectors[-1].stop() == 0


@pytest.mark.parametrize("re_created", mostly_slow([True, False], [False]), ids=["re-created", "gone"])
def test_a_lost_offsets_topic_is_not_taken_for_a_first_start(users: Users, re_created: bool) -> None:
    """However often it is started: the states that failed starts write to the new topic are no stored position."""
    topic = own_offsets_topic(users)
    worked(users)
    delete(users, topic)
    if re_created:
        create(users, topic)
    for on_log_loss in ("halt", "recover", "recover"):
        users.configure(source={"on_log_loss": on_log_loss})
        users.start(wait=False).failed("PositionForgotten")
    users.start("--adopt")
    arrived(users, users.insert("k", 2))
    assert users.connectors[-1].stop() == 0
    missed = users.insert("k", 3)
    users.start()
    arrived(users, missed)


def test_the_offsets_topic_is_deleted_while_mongodb_is_away(kafka: KafkaBroker, tmp_path: Path) -> None:
    with MongoServer(choice=ServerChoice.LOCAL) as server:
        users = open_users(server, kafka, tmp_path, link_timeout=2)
        try:
            topic = own_offsets_topic(users)
            connector = users.start()
            arrived(users, users.insert("k"))
            server.kill()
            connector.says('"waiting"')
            delete(users, topic)
            server.start()
            connector.failed("PositionForgotten")
        finally:
            close_users(users)


def test_killed_at_its_first_start_it_starts_again(users: Users) -> None:
    """The dead-letter topic exists and no position does, but this start was never completed."""
    own_offsets_topic(users)
    assert users.start(kill=failpoints.BEFORE_PRODUCE).ended() == -9
    assert users.letters in users.kafka.admin().list_topics(timeout=20).topics
    assert not users.positions()
    users.start()
    arrived(users, users.insert("k"))


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b'{"format": 9, "source": "mongo"}', b'{"format": 1, "source": "mongo", "token": {"_data": 5}}'],
)
def test_a_stored_position_that_cannot_be_read(users: Users, value: bytes) -> None:
    worked(users)
    write(users, value)
    connector = users.start(wait=False)
    connector.failed("OffsetRecordCorrupt")
    assert users.name in connector.log


def test_a_position_of_another_kind_of_database(users: Users) -> None:
    worked(users)
    log = {"system_id": "1", "timeline": 1, "database": "d", "slot": "s", "table": "t", "publication": "p"}
    write(users, json.dumps({"format": 1, "source": "postgres", "lsn": "0/1", "at_ms": 1, "log": log}).encode())
    users.start(wait=False).failed("WrongLog")


def test_a_position_ahead_of_the_server(users: Users) -> None:
    """As after a restore: nothing is skipped silently."""
    worked(users)
    found = [m for m in read_all(users.kafka.bootstrap, ["tailrace-offsets"]) if m.key() == users.name.encode()]
    stored = json.loads(found[-1].value() or b"")
    seconds = int(stored["time"].split(".")[0]) + 86_400
    write(
        users, json.dumps({**stored, "time": f"{seconds}.1", "token": {"_data": f"82{seconds:08X}000000012B"}}).encode()
    )
    users.start(wait=False).failed("PositionAhead")
