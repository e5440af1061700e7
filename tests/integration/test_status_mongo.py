"""`tailrace status` of a MongoDB pipeline: RUNNING counts only while the connector has a session."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.users import Users, close_users, open_users
from tailrace.cli import main
from tailrace.outbox.mongosh import user_commands
from tailrace.testkit.stack import KafkaBroker, MongoServer, ServerChoice, wait_until

PASSWORD = "status-s3cret"

Status = Callable[[], dict[str, Any]]


def ask(users: Users, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    with pytest.raises(SystemExit) as caught:
        main(["status", str(users.file), "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert caught.value.code == (0 if told["state"] == "RUNNING" else 1)
    return told


@pytest.fixture
def status(users: Users, capsys: pytest.CaptureFixture[str]) -> Status:
    """Asks once; the exit code goes with the state."""
    return lambda: ask(users, capsys)


def becomes(status: Status, state: str) -> dict[str, Any]:
    """The server needs a moment to notice that a session is gone."""
    last: dict[str, Any] = {}

    def reached() -> bool:
        last.update(status())
        return bool(last["state"] == state)

    wait_until(reached, 60, what=f"{state}, but it is {last}")
    return last


def test_never_started(status: Status) -> None:
    told = status()
    assert (told["state"], told["source"]) == ("NEVER STARTED", "mongo")
    assert (told["position"], told["slot"], told["lag_seconds"], told["away"]) == (None, None, None, {})
    assert told["oplog"]["reaches_back"] is None


def test_running_and_stopped(users: Users, status: Status) -> None:
    connector = users.start()
    told = becomes(status, "RUNNING")
    assert told["announced"]["pid"] == connector.process.pid
    assert told["since_ms"] == told["announced"]["at_ms"]
    assert told["position"] is not None
    assert (told["lag_bytes"], told["lag_seconds"], told["detail"]) == (None, 0, "")
    assert told["oplog"]["reaches_back"] is True
    assert told["oplog"]["window_seconds"] >= told["oplog"]["room_seconds"] >= 0
    assert connector.stop() == 0
    told = status()
    assert (told["state"], told["error"]) == ("STOPPED", None)


def test_killed(users: Users, status: Status) -> None:
    """The cursor stays on the server for minutes: it is nobody's."""
    connector = users.start()
    becomes(status, "RUNNING")
    connector.kill()
    told = becomes(status, "NOT RUNNING")
    assert told["announced"]["state"] == "RUNNING"
    assert "no session of the connector, for " in told["detail"]
    assert "at most" in told["detail"]


def test_a_session_of_another_pipeline_is_not_this_one(users: Users, status: Status) -> None:
    connector = users.start()
    becomes(status, "RUNNING")
    users.configure(pipeline=f"{users.name}x", kafka={"dead_letter_topic": f"{users.name}x.dead-letters"})
    assert status()["state"] == "NEVER STARTED"
    users.start()
    connector.kill()
    users.configure(pipeline=users.name)
    becomes(status, "NOT RUNNING")


def test_failed(users: Users, status: Status) -> None:
    users.start().stop()
    with users.client() as client:
        client[users.database].drop_collection("outbox")
    assert users.start(wait=False).ended() == 3
    told = status()
    assert (told["state"], told["error"]["code"]) == ("FAILED", "WrongLog")
    assert "--adopt" in told["error"]["remedy"]


def test_reading_what_was_there(users: Users, status: Status) -> None:
    """Small batches, so that it takes long enough to be looked at many times."""
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
        told = status()
        if told["position"] and "reading the collection" in told["position"] and told["state"] == "RUNNING":
            seen.append(told["detail"])
        return bool(told["position"] and "reading" not in told["position"])

    wait_until(streaming, 60, what=f"the end of the collection; the log:\n{connector.log}")
    assert set(seen) == {"reading the documents that existed before the first start"}


def test_the_lag_is_the_age_of_the_first_event_that_waits(users: Users, status: Status) -> None:
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


def test_an_idle_pipeline_on_an_idle_server_has_no_lag(users: Users, status: Status) -> None:
    """Its position is seconds old, and the server's own no-ops come every 10 s: neither is a lag."""
    users.start()
    becomes(status, "RUNNING")
    began = status()["position"]
    moved = 0

    def moved_twice() -> bool:
        nonlocal began, moved
        told = status()
        assert told["lag_seconds"] == 0
        moved += told["position"] != began
        began = told["position"]
        return moved >= 2

    wait_until(moved_twice, 90, what="two steps of the stored position over no-ops")


def test_mongo_is_away(users: Users, status: Status) -> None:
    users.start()
    becomes(status, "RUNNING")
    users.configure(source={"mongo": "mongodb://127.0.0.1:1/", "link_timeout": 1})
    told = status()
    assert (told["state"], list(told["away"])) == ("UNKNOWN", ["mongo"])
    assert "MongoDB does not answer" in told["detail"]
    assert told["position"] is not None


def test_kafka_is_away(users: Users, status: Status) -> None:
    users.start()
    users.configure(kafka={"bootstrap": "127.0.0.1:1"})
    told = status()
    assert (told["state"], list(told["away"])) == ("UNKNOWN", ["kafka"])
    assert "the connector is connected from 127.0.0.1:" in told["detail"]


def test_what_a_person_reads(users: Users, capsys: pytest.CaptureFixture[str]) -> None:
    users.start()
    with pytest.raises(SystemExit):
        main(["status", str(users.file)])
    told = capsys.readouterr().out
    for line in (f"pipeline   {users.name}", "state      RUNNING since ", "lag        0 s", "oplog      "):
        assert line in told
    assert "slot" not in told


def test_tail_shows_what_is_published(users: Users, capsys: pytest.CaptureFixture[str]) -> None:
    users.start()
    event = users.insert("user-7")
    with pytest.raises(SystemExit) as caught:
        main(["tail", str(users.file), "--from-beginning", "--limit", "1", "--json"])
    assert caught.value.code == 0
    seen = json.loads(capsys.readouterr().out)
    assert (seen["id"], seen["key"], seen["topic"]) == (event, "user-7", users.topic)


@pytest.fixture(scope="module")
def guarded() -> Iterator[MongoServer]:
    """A server that asks everyone who they are."""
    with MongoServer(auth=True, choice=ServerChoice.LOCAL) as server:
        yield server


def test_a_server_that_does_not_tell_who_is_connected(
    guarded: MongoServer, kafka: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = open_users(guarded, kafka, tmp_path)
    connector = users.start()
    becomes(lambda: ask(users, capsys), "RUNNING")
    refuse = {"failCommands": ["aggregate"], "errorCode": 13, "appName": f"tailrace {users.name} (observer)"}
    for state, expected in (("RUNNING", "UNKNOWN"), ("STOPPED", "STOPPED")):
        if state == "STOPPED":
            assert connector.stop() == 0
        with guarded.client() as client:
            client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=refuse)
        told = ask(users, capsys)
        assert (told["state"], told["announced"]["state"], told["away"]) == (expected, state, {})
    close_users(users)


def test_a_user_with_the_fewest_rights_sees_its_own_sessions(
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
    told = becomes(lambda: ask(users, capsys), "RUNNING")
    assert told["lag_seconds"] == 0
    assert told["oplog"] == {"reaches_back": True, "window_seconds": None, "room_seconds": None, "full": None}
    connector.kill()
    becomes(lambda: ask(users, capsys), "NOT RUNNING")
    # Somebody else's sessions are not shown; that is the price of looking with other settings than the connector's.
    connector = users.start()
    users.configure(source={"mongo": others})
    assert ask(users, capsys)["state"] == "NOT RUNNING"
    close_users(users)
