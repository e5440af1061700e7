"""`tailrace status` of a MongoDB pipeline: RUNNING counts only while the connector has a session."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.command import read_status, wait_for_state
from helpers.users import Users, close_users, open_users
from tailrace.cli import main
from tailrace.outbox.mongosh import user_commands
from tailrace.testkit.stack import KafkaBroker, MongoServer, ServerChoice, wait_until

PASSWORD = "status-s3cret"

Status = Callable[[], dict[str, Any]]


@pytest.fixture
def status(users: Users, capsys: pytest.CaptureFixture[str]) -> Status:
    """Returns a function that runs `tailrace status` once."""
    return lambda: read_status(users.file, capsys)


def test_never_started(status: Status) -> None:
    health = status()
    assert (health["state"], health["source"]) == ("NEVER STARTED", "mongo")
    assert (health["position"], health["slot"], health["lag_seconds"], health["away"]) == (None, None, None, {})
    assert health["oplog"]["reaches_back"] is None


def test_running_and_stopped(users: Users, status: Status) -> None:
    connector = users.start()
    health = wait_for_state(status, "RUNNING")
    assert health["announced"]["pid"] == connector.process.pid
    assert health["since_ms"] == health["announced"]["at_ms"]
    assert health["position"] is not None
    assert (health["lag_bytes"], health["lag_seconds"], health["detail"]) == (None, 0, "")
    assert health["oplog"]["reaches_back"] is True
    assert health["oplog"]["window_seconds"] >= health["oplog"]["room_seconds"] >= 0
    assert connector.stop() == 0
    health = status()
    assert (health["state"], health["error"]) == ("STOPPED", None)


def test_killed(users: Users, status: Status) -> None:
    """The cursor stays on the server for minutes, without a session."""
    connector = users.start()
    wait_for_state(status, "RUNNING")
    connector.kill()
    health = wait_for_state(status, "NOT RUNNING")
    assert health["announced"]["state"] == "RUNNING"
    assert "no session of the connector, for " in health["detail"]
    assert "at most" in health["detail"]


def test_a_session_of_another_pipeline_is_not_this_one(users: Users, status: Status) -> None:
    connector = users.start()
    wait_for_state(status, "RUNNING")
    users.configure(pipeline=f"{users.name}x", kafka={"dead_letter_topic": f"{users.name}x.dead-letters"})
    assert status()["state"] == "NEVER STARTED"
    users.start()
    connector.kill()
    users.configure(pipeline=users.name)
    wait_for_state(status, "NOT RUNNING")


def test_failed(users: Users, status: Status) -> None:
    users.start().stop()
    with users.client() as client:
        client[users.database].drop_collection("outbox")
    assert users.start(wait=False).ended() == 3
    health = status()
    assert (health["state"], health["error"]["code"]) == ("FAILED", "WrongLog")
    assert "--adopt" in health["error"]["remedy"]


def test_reading_existing_documents_is_running(users: Users, status: Status) -> None:
    """Small batches make the reading long enough for many requests."""
    users.configure(source={"start": "beginning"}, limits={"batch_records": 10})
    template = users.insert()
    with users.client() as client:
        outbox = client[users.database]["outbox"]
        first = outbox.find_one({"event_id": template}, {"_id": 0})
        assert first is not None
        outbox.insert_many([{**first, "event_id": f"e{number}"} for number in range(2000)])
    connector = users.start(wait=False)
    seen: list[str] = []

    def streaming() -> bool:
        health = status()
        if health["position"] and "reading the collection" in health["position"] and health["state"] == "RUNNING":
            seen.append(health["detail"])
        return bool(health["position"] and "reading" not in health["position"])

    wait_until(streaming, 60, what=f"the end of the collection; the log:\n{connector.log}")
    assert set(seen) == {"reading the documents that existed before the first start"}


def test_the_lag_is_the_age_of_the_first_unread_event(users: Users, status: Status) -> None:
    users.start().stop()
    with users.client() as client:
        client[users.database].others.insert_many([{"n": number} for number in range(100)])
        assert status()["lag_seconds"] == 0, "what others write is nothing that waits"
    users.insert()
    first = status()["lag_seconds"]
    assert 0 <= first < 60
    users.insert()
    wait_until(lambda: status()["lag_seconds"] > first + 1, 60, what="a growing lag")
    users.start()
    wait_until(lambda: status()["lag_seconds"] == 0, 60, what="the end of the lag")


@pytest.mark.slow
def test_an_idle_pipeline_on_an_idle_server_has_no_lag(users: Users, status: Status) -> None:
    """Neither a position that is seconds old nor the server's no-ops every 10 s are a lag."""
    users.start()
    wait_for_state(status, "RUNNING")
    began = status()["position"]
    moved = 0

    def moved_twice() -> bool:
        nonlocal began, moved
        health = status()
        assert health["lag_seconds"] == 0
        moved += health["position"] != began
        began = health["position"]
        return moved >= 2

    wait_until(moved_twice, 90, what="the stored position to pass two no-ops")


def test_mongo_is_unavailable(users: Users, status: Status) -> None:
    users.start()
    wait_for_state(status, "RUNNING")
    users.configure(source={"mongo": "mongodb://127.0.0.1:1/", "link_timeout": 1})
    health = status()
    assert (health["state"], list(health["away"])) == ("UNKNOWN", ["mongo"])
    assert "MongoDB does not answer" in health["detail"]
    assert health["position"] is not None


def test_kafka_is_unavailable(users: Users, status: Status) -> None:
    users.start()
    users.configure(kafka={"bootstrap": "127.0.0.1:1"})
    health = status()
    assert (health["state"], list(health["away"])) == ("UNKNOWN", ["kafka"])
    assert "the connector is connected from 127.0.0.1:" in health["detail"]


def test_output_as_text(users: Users, capsys: pytest.CaptureFixture[str]) -> None:
    users.start()
    with pytest.raises(SystemExit):
        main(["status", str(users.file)])
    printed = capsys.readouterr().out
    for line in (f"pipeline     {users.name}", "state        RUNNING since ", "lag          0 s", "oplog        "):
        assert line in printed
    assert "slot" not in printed


def test_tail_shows_published_events(users: Users, capsys: pytest.CaptureFixture[str]) -> None:
    users.start()
    event = users.insert("user-7")
    with pytest.raises(SystemExit) as caught:
        main(["tail", str(users.file), "--from-beginning", "--limit", "1", "--json"])
    assert caught.value.code == 0
    seen = json.loads(capsys.readouterr().out)
    assert (seen["id"], seen["key"], seen["topic"]) == (event, "user-7", users.topic)


@pytest.fixture(scope="module")
def guarded() -> Iterator[MongoServer]:
    """A server that requires authentication."""
    with MongoServer(auth=True, choice=ServerChoice.LOCAL) as server:
        yield server


def test_a_user_who_may_not_see_sessions(
    guarded: MongoServer, kafka: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = open_users(guarded, kafka, tmp_path)
    connector = users.start()
    wait_for_state(lambda: read_status(users.file, capsys), "RUNNING")
    refuse = {"failCommands": ["aggregate"], "errorCode": 13, "appName": f"tailrace {users.name} (observer)"}
    for state, expected in (("RUNNING", "UNKNOWN"), ("STOPPED", "STOPPED")):
        if state == "STOPPED":
            assert connector.stop() == 0
        with guarded.client() as client:
            client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=refuse)
        health = read_status(users.file, capsys)
        assert (health["state"], health["announced"]["state"], health["away"]) == (expected, state, {})
    close_users(users)


def test_a_user_with_the_fewest_privileges_sees_its_own_sessions(
    guarded: MongoServer, kafka: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = open_users(guarded, kafka, tmp_path)
    role = user_commands(users.database, "outbox", f"role_{users.name}", "")[0]
    with guarded.client() as client:
        client[role.database].command(role.body)
    names = (f"u_{users.name}", f"o_{users.name}")
    mine, others = (guarded.create_user(name, PASSWORD, [f"role_{users.name}"]) for name in names)
    users.configure(source={"mongo": mine})
    connector = users.start()
    health = wait_for_state(lambda: read_status(users.file, capsys), "RUNNING")
    assert health["lag_seconds"] == 0
    assert health["oplog"] == {"reaches_back": True, "window_seconds": None, "room_seconds": None, "full": None}
    connector.kill()
    wait_for_state(lambda: read_status(users.file, capsys), "NOT RUNNING")
    # Sessions of other users are not shown, so status with another user than the connector's does not see it.
    connector = users.start()
    users.configure(source={"mongo": others})
    assert read_status(users.file, capsys)["state"] == "NOT RUNNING"
    close_users(users)
