"""Row 37 of the fault matrix, and faults of a replica set with several members: elections, rollback, no majority."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pymongo.write_concern import WriteConcern

from helpers.users import Users, close_users, open_users
from tailrace.testkit.stack import KafkaBroker, MongoReplicaSet, wait_until
from tailrace.testkit.workload.users import outbox_document
from tailrace.testkit.workload.writer import WorkloadEvent


@pytest.fixture
def set_users(mongo_set: MongoReplicaSet, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Users]:
    users = open_users(mongo_set, kafka, tmp_path, link_timeout=5)
    yield users
    for member in mongo_set.members:
        if not member.running:
            member.start()
    mongo_set.await_primary()
    close_users(users)


@pytest.mark.slow
def test_the_primary_steps_down_under_load(set_users: Users, mongo_set: MongoReplicaSet) -> None:
    users = set_users
    connector = users.start()
    writer = users.writer()
    writer.start(rate=40)
    wait_until(lambda: len(users.positions()) > 3, 60, what="some batches to be stored")
    mongo_set.step_down()
    stored = len(users.positions())
    wait_until(lambda: len(users.positions()) > stored + 3, 60, what=f"batches after the election:\n{connector.log}")
    writer.stop()
    verdict = users.caught_up()
    assert verdict.ok, verdict
    assert connector.running, connector.log


def test_the_primary_is_killed_under_load(set_users: Users, mongo_set: MongoReplicaSet) -> None:
    users = set_users
    connector = users.start()
    writer = users.writer()
    writer.start(rate=40)
    wait_until(lambda: len(users.positions()) > 3, 60, what="some batches to be stored")
    old = mongo_set.await_primary()
    old.kill()
    mongo_set.await_primary(not_=old)
    stored = len(users.positions())
    wait_until(lambda: len(users.positions()) > stored + 3, 60, what=f"batches after the election:\n{connector.log}")
    old.start()
    writer.stop()
    verdict = users.caught_up()
    assert verdict.ok, verdict
    assert connector.running, connector.log


def test_a_rolled_back_write_is_never_published(set_users: Users, mongo_set: MongoReplicaSet) -> None:
    """A write with w: 1 that only the old primary has is acknowledged, then rolled back, and never published (I3)."""
    users = set_users
    connector = users.start()
    kept = users.insert("kept")
    wait_until(lambda: kept in {record.id for record in users.published()}, 60, what=f"the event:\n{connector.log}")
    old = mongo_set.await_primary()
    others = [member for member in mongo_set.members if member is not old]
    for member in others:
        member.stop_replicating()
    rolled_back = WorkloadEvent(str(uuid.uuid4()), "rolled_back", 1, valid=True)
    document = outbox_document(rolled_back, topic=users.topic, at=datetime.now(UTC))
    with old.client() as client:
        outbox = client[users.database].get_collection("outbox", write_concern=WriteConcern(w=1))
        assert outbox.insert_one(document).acknowledged
        assert outbox.find_one({"event_id": rolled_back.id}), "only the primary has it"
    old.kill()
    for member in others:
        member.resume_replicating()
    mongo_set.await_primary(not_=old)
    old.start()
    after = users.insert("after")
    wait_until(
        lambda: after in {record.id for record in users.published()}, 60, what=f"the next event:\n{connector.log}"
    )
    assert rolled_back.id not in users.in_outbox(), "it was rolled back"
    assert [record.id for record in users.published()].count(rolled_back.id) == 0
    assert {record.id for record in users.published()} == {kept, after}
    assert connector.running, connector.log


@pytest.mark.slow
def test_without_a_majority_the_connector_retries_and_reports_it(set_users: Users, mongo_set: MongoReplicaSet) -> None:
    """Without a primary it retries with growing delays, and continues by itself when the set is complete."""
    users = set_users
    connector = users.start()
    event = users.insert("k")
    wait_until(lambda: event in {record.id for record in users.published()}, 60, what=f"the event:\n{connector.log}")
    primary = mongo_set.await_primary()
    others = [member for member in mongo_set.members if member is not primary]
    for member in others:
        member.kill()
    connector.says('"SourceUnavailable"', 90)
    assert "no primary could be reached" in connector.log or "gave no answer" in connector.log, connector.log
    assert connector.log.count('"waiting"') < 20, "delays must grow"
    for member in others:
        member.start()
    mongo_set.await_primary()
    again = users.insert("k", 2)
    wait_until(
        lambda: again in {record.id for record in users.published()}, 90, what=f"the next event:\n{connector.log}"
    )
    assert connector.running, connector.log
