"""Runs what `tailrace init --mongo` writes: its commands, then check and run with the user they create.

There is no mongosh here: the driver runs the commands from which the script is generated.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError, OperationFailure

from helpers.service import Connector
from tailrace.cli import main
from tailrace.outbox.mongosh import collection_commands, script, user_commands
from tailrace.testkit.stack import KafkaBroker, MongoServer, ServerChoice, wait_until
from tailrace.testkit.topic_reader import header, read_all

USER = "reader"
"""Here the administrator is called as the script calls its user."""
PASSWORD = "init-run/s3cret@1"
ORDER = {"order_id": "o-1", "customer": "c-1", "total_cents": 995}


@pytest.fixture(scope="module")
def server() -> Iterator[MongoServer]:
    """A separate server: the user has the same name in every case."""
    with MongoServer(auth=True, choice=ServerChoice.LOCAL) as server:
        yield server


def apply(server: MongoServer, file: Path, name: str, database: str, collection: str, marks: str = "none") -> None:
    """Runs the script's commands twice, with a password where mongosh would ask for one."""
    user = user_commands(database, collection, f"tailrace_{name}", "tailrace", marks=marks)
    commands = [*collection_commands(database, collection), *user]
    assert script(commands) in file.read_text()
    with server.client() as client:
        for command in [*commands, *commands]:
            given = {"createUser": USER, "pwd": PASSWORD} if "createUser" in command.body else {}
            if command.unless is not None:
                question, field = command.unless
                renamed = {"usersInfo": {"user": USER, "db": "admin"}} if given else question
                if client[command.database].command(renamed)[field]:
                    continue
            client[command.database].command({**command.body, **given})


def document(event: str) -> dict[str, Any]:
    return {
        "event_id": event,
        "event_type": "OrderPlaced",
        "entity_type": "order",
        "entity_id": "o-1",
        "entity_version": 1,
        "partition_key": "o-1",
        "topic": "elsewhere",
        "payload": ORDER,
        "created_at": datetime.now(UTC),
    }


@pytest.mark.parametrize(("start", "marks"), [("now", "none"), ("beginning", "rows")])
def test_the_files_publish_a_first_event(
    server: MongoServer,
    kafka: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    start: str,
    marks: str,
) -> None:
    """Without the privileges that `--marks rows` grants, marks are refused, and events are published."""
    name = f"init_{uuid.uuid4().hex[:8]}"
    with pytest.raises(SystemExit):
        main(["init", str(tmp_path), "--name", name, "--mongo", "--collection", f"{name}.out.box", "--marks", marks])
    apply(server, tmp_path / f"{name}.js", name, name, "out.box", marks)
    monkeypatch.setenv(f"{name.upper()}_DB_PASSWORD", PASSWORD)
    file = tmp_path / f"{name}.yaml"
    text = file.read_text()
    for before, after in (
        ("mongodb://tailrace:", f"mongodb://{USER}:"),
        ("@localhost:27017/?replicaSet=rs0", f"@{server.host}:{server.port}/?replicaSet={server.set_name}"),
        ("bootstrap: localhost:9092", f"bootstrap: {kafka.bootstrap}"),
        ("start: beginning ", f"start: {start} "),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    file.write_text(text if marks == "rows" else f"{text}\nmarks: rows\n")

    connector: Connector | None = None
    with server.client() as client:
        outbox = client[name]["out.box"]

        def write() -> str:
            event = str(uuid.uuid4())
            outbox.insert_one(document(event))
            return event

        before = write()
        expected = [before] if start == "beginning" else []
        try:
            capsys.readouterr()
            with pytest.raises(SystemExit) as caught:
                main(["check", str(file), "--json"])
            output = capsys.readouterr().out
            assert caught.value.code == 0, output
            assert PASSWORD not in output
            states = {check["name"]: check["state"] for check in json.loads(output)["checks"]}
            version = tuple(map(int, server.version.split(".")[:3]))
            assert states.pop("mongo version") == ("WARN" if version < (6, 0, 9) else "OK")
            assert states.pop("marks") == ("OK" if marks == "rows" else "WARN")
            assert set(states.values()) == {"OK"}, output
            assert ("order_by" in states) == (start == "beginning")

            connector = Connector(file, tmp_path / "log")
            connector.says('"running"')
            expected.append(write())
            wait_until(
                lambda: [header(m, "id") for m in read_all(kafka.bootstrap, [f"shop.{name}"])] == expected,
                60,
                what=f"the events; the log:\n{connector.log}",
            )
            if marks == "rows":
                wait_until(
                    lambda: outbox.count_documents({"status": "published"}) == len(expected),
                    60,
                    what=f"the marks; the log:\n{connector.log}",
                )
            else:
                connector.says('"MarksRefused"')
            assert ("MarksRefused" in connector.log) == (marks == "none")
            with pytest.raises(SystemExit) as caught:
                main(["status", str(file)])
            assert caught.value.code == 0, capsys.readouterr().out
            capsys.readouterr()
            with pytest.raises(SystemExit) as caught:
                main(["verify", str(file), "--json"])
            output = capsys.readouterr().out
            assert (caught.value.code, json.loads(output)["clean"]) == (0, True), output
            assert connector.stop() == 0
        finally:
            if connector is not None and connector.running:
                connector.kill()
            client.admin.command("dropUser", USER)


def test_the_user_may_not_write_and_an_event_id_is_unique(server: MongoServer, tmp_path: Path) -> None:
    name = f"init_{uuid.uuid4().hex[:8]}"
    with pytest.raises(SystemExit):
        main(["init", str(tmp_path), "--name", name, "--mongo", "--collection", f"{name}.outbox"])
    apply(server, tmp_path / f"{name}.js", name, name, "outbox")
    with server.client() as client:
        client[name].outbox.insert_one(document("e"))
        with pytest.raises(DuplicateKeyError):
            client[name].outbox.insert_one(document("e"))
    address = {"host": server.host, "port": server.port, "username": USER, "password": PASSWORD}
    with MongoClient[dict[str, Any]](**address, replicaSet=server.set_name) as tailrace:
        assert tailrace[name].outbox.count_documents({}) == 1
        for refused in (
            lambda: tailrace[name].outbox.insert_one({}),
            lambda: tailrace[name].outbox.delete_many({}),
            tailrace[name].other.find_one,
            lambda: tailrace.admin.command("replSetGetStatus"),
        ):
            with pytest.raises(OperationFailure, match="not authorized"):
                refused()
    with server.client() as client:
        client.admin.command("dropUser", USER)
