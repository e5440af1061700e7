"""Rows 10, 38 and 40 of the fault matrix for MongoDB: the gap is closed, and nothing is published twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.recovery import apply, goes_on, plan, ran_before, recover, refused, right, work
from helpers.users import Users, close_users, open_users
from tailrace import failpoints
from tailrace.testkit.stack import KafkaBroker, MongoServer, ServerChoice, wait_until


@pytest.fixture(scope="module")
def small_mongo() -> Iterator[MongoServer]:
    """A server whose oplog is small."""
    with MongoServer(oplog_mb=1, choice=ServerChoice.LOCAL) as server:
        yield server


@pytest.fixture
def own_users(small_mongo: MongoServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Users]:
    users = open_users(small_mongo, kafka, tmp_path)
    yield users
    close_users(users)


def roll_over(users: Users) -> None:
    """Fills the oplog until its first entry is gone."""
    with users.client() as client:
        oplog = client.local["oplog.rs"]
        newest = oplog.find_one(sort=[("$natural", -1)])
        assert newest is not None

        def rolled() -> bool:
            client[users.database].filler.insert_many([{"x": "y" * 50_000} for _ in range(20)])
            oldest = oplog.find_one(sort=[("$natural", 1)])
            return bool(oldest and oldest["ts"] > newest["ts"])

        wait_until(rolled, 60, what="the oplog to roll over")


@pytest.mark.slow
def test_the_oplog_has_rolled_over(own_users: Users) -> None:
    """Row 38, killed at each step; updated documents are published as they are now."""
    users = own_users
    users.configure(limits={"batch_records": 5})
    ran_before(users)
    before = len(users.writers[0].written)
    work(users, 5)
    with users.client() as client:
        client[users.database].outbox.update_many({}, {"$set": {"status": "seen"}})
    roll_over(users)
    result = plan(users)
    assert result["case"]["code"] == "HistoryLost", result
    assert (result["missed"], result["undecided"]) == (len(users.writers[0].written) - before, 0), result
    for point in (failpoints.SLOT_CREATED, f"{failpoints.AFTER_PRODUCE}:2", f"{failpoints.AFTER_COMMIT}:2"):
        killed = recover(users, "apply", "--yes", kill=point)
        assert killed.returncode == -9, (point, killed.stderr)
    users.start("--adopt", wait=False).failed("RecoveryUnfinished")
    apply(users)
    goes_on(users)


@pytest.mark.slow
def test_a_dropped_collection_or_a_lost_position(users: Users) -> None:
    """Row 40: dropped and re-created, with new documents. Row 10: the offsets topic is gone. The last time
    automatically.
    """
    topic = f"{users.name}.offsets"
    users.configure(kafka={"offsets_topic": topic}, source={"start": "beginning"})
    ran_before(users)
    with users.client() as client:
        client[users.database].outbox.drop()
    work(users)
    assert plan(users)["case"]["code"] == "WrongLog"
    # An id that was published before, assigned to another event: it must not be taken for that one.
    again = users.insert(event_id=users.writers[0].written[0].id, entity_id="another", payload={"user": "another"})
    assert "other events" in refused(users, "RecoveryUncertain")
    with users.client() as client:
        client[users.database].outbox.delete_one({"event_id": again})
    assert apply(users)["published"] > 0
    right(users)
    work(users)
    admin = users.kafka.admin()
    for each in admin.delete_topics([topic, f"{topic}-ledger"]).values():
        each.result(20)
    gone = {topic, f"{topic}-ledger"}
    wait_until(lambda: gone.isdisjoint(admin.list_topics(timeout=10).topics), what="the topics to go")
    assert plan(users)["case"]["code"] == "PositionForgotten"
    killed = recover(users, "apply", "--yes", kill=failpoints.BEFORE_PRODUCE)
    assert killed.returncode == -9, killed.stderr
    users.start(wait=False).failed("PositionForgotten")
    apply(users)
    right(users)
    users.configure(source={"on_log_loss": "recover"})
    with users.client() as client:
        client[users.database].outbox.drop()
    work(users)
    connector = users.start()
    assert '"recovered"' in connector.log
    work(users, 1)
    right(users)
    assert connector.stop() == 0
