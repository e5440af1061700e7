"""`tailrace check` of a MongoDB pipeline on real servers: problems, their fixes, and no changes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from pymongo import MongoClient

from helpers.users import Users, close_users, open_users
from tailrace.check import mongo as preflight_mongo
from tailrace.cli import main
from tailrace.outbox.mongosh import user_commands
from tailrace.positions.base import to_stored
from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.testkit.stack import KafkaBroker, MongoReplicaSet, MongoServer, ServerChoice, mongo_local, wait_until
from tailrace.testkit.workload.users import OUTBOX

PASSWORD = "check-s3cret"
OK, WARN, FAIL = "OK", "WARN", "FAIL"


class Report:
    """The checks by name."""

    def __init__(self, code: object, output: dict[str, Any]) -> None:
        self.code = code
        self.checks = {check["name"]: check for check in output["checks"]}

    def state(self, name: str) -> str:
        return str(self.checks[name]["state"])

    def found(self, name: str) -> str:
        return str(self.checks[name]["found"])

    def remedy(self, name: str) -> str:
        return str(self.checks[name]["remedy"])

    def failures(self) -> list[str]:
        return [name for name, check in self.checks.items() if check["state"] == FAIL]


Run = Callable[[Users], Report]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(users: Users) -> Report:
        with pytest.raises(SystemExit) as caught:
            main(["check", str(users.file), "--json"])
        output = capsys.readouterr()
        assert PASSWORD not in output.out + output.err
        assert output.err == ""
        report = Report(caught.value.code, json.loads(output.out))
        assert caught.value.code == (1 if report.failures() else 0)
        return report

    return run


@pytest.fixture(scope="module")
def guarded() -> Iterator[MongoServer]:
    """A server that requires authentication."""
    with MongoServer(auth=True, choice=ServerChoice.LOCAL) as server:
        yield server


@pytest.fixture
def guests(guarded: MongoServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[Users]:
    """A users service on that server; its pipeline file has the administrator's URI."""
    folder = tmp_path / "guests"
    folder.mkdir()
    users = open_users(guarded, kafka, folder)
    yield users
    close_users(users)


def as_user(users: Users, *rights: Mapping[str, Any], roles: tuple[str, ...] = ()) -> None:
    """Lets the pipeline log in as a separate user with these privileges."""
    assert isinstance(users.mongo, MongoServer)
    number = len(users.settings["source"]["mongo"])
    name = f"{users.name}_{number}_{len(rights)}"
    with users.client() as client:
        client.admin.command("createRole", f"r_{name}", privileges=list(rights), roles=[])
    users.configure(source={"mongo": users.mongo.create_user(f"u_{name}", PASSWORD, [f"r_{name}", *roles])})


def right(users: Users, *actions: str, collection: str = "outbox") -> dict[str, Any]:
    return {"resource": {"db": users.database, "collection": collection}, "actions": list(actions)}


def test_before_a_first_start_nothing_is_created(users: Users, run: Run) -> None:
    with users.client() as client:
        client[users.database].drop_collection("outbox")
    report = run(users)
    assert report.failures() == []
    assert "first start" in report.found("start")
    assert "will be created on the first start" in report.found("collection")
    assert "there is no document to check" in report.found("fields")
    assert report.found("members") == "1 of 1 voting members with data are up, 1 are needed"
    assert report.found("write concern") == "w: majority"
    assert report.state("oplog") == report.state("user") == report.state("mongo encryption") == OK
    with users.client() as client:
        assert "outbox" not in client[users.database].list_collection_names()
        assert not _cursors(client, users.database)
    assert users.topic not in users.kafka.admin().list_topics(timeout=10).topics


def _cursors(client: MongoClient[dict[str, Any]], database: str) -> list[Any]:
    wanted = {"$match": {"type": "idleCursor", "ns": {"$regex": f"^{database}"}}}
    return list(client.admin.aggregate([{"$currentOp": {"idleCursors": True}}, wanted]))


@pytest.mark.slow
def test_does_not_disturb_a_running_pipeline(users: Users, run: Run) -> None:
    connector = users.start()
    for _ in range(3):
        report = run(users)
        assert report.failures() == []
        assert "runs now at the stored position" in report.found("start")
    event = users.insert()
    wait_until(lambda: [seen.id for seen in users.published()] == [event], 60, what="the event")
    assert "the newest 1 documents are valid" in run(users).found("fields")
    assert connector.stop() == 0
    assert "resumes at the stored position" in run(users).found("start")


def test_a_user_with_the_fewest_privileges(guests: Users, run: Run) -> None:
    """The privileges of `tailrace init`; checks that need others are skipped."""
    privileges = user_commands(guests.database, "outbox", "", "")[0].body["privileges"]
    as_user(guests, *privileges)
    report = run(guests)
    assert report.failures() == []
    assert report.state("user") == report.state("collection") == report.state("rights") == OK
    assert {"members", "write concern", "oplog"}.isdisjoint(report.checks)
    as_user(guests, *privileges, roles=("clusterMonitor",))
    report = run(guests)
    assert report.state("members") == report.state("write concern") == report.state("oplog") == OK


def test_missing_privileges(guests: Users, run: Run) -> None:
    as_user(guests, right(guests, "find"), right(guests, "listCollections", collection=""))
    report = run(guests)
    assert report.failures() == ["rights"]
    assert "changeStream" in report.remedy("rights")
    assert {"fields", "start"}.isdisjoint(report.checks)
    as_user(guests, right(guests, "find", "changeStream"))
    report = run(guests)
    assert (report.failures(), report.state("collection")) == ([], WARN)
    assert "listCollections" in report.remedy("collection")


def test_the_privileges_of_row_marks(guests: Users, run: Run) -> None:
    commands = user_commands(guests.database, "outbox", "", "", marks="rows")
    tailing, marking = (command.body["privileges"] for command in commands[:2])
    as_user(guests, *tailing)
    assert "marks" not in run(guests).checks
    guests.configure(marks="rows")
    report = run(guests)
    assert (report.failures(), report.state("marks")) == ([], WARN)
    assert f"update on {guests.database}.outbox; find, insert, update, remove on" in report.found("marks")
    # The remedy is a call for mongosh; what it grants is enough.
    call = report.remedy("marks").partition(".grantPrivilegesToRole(")[2]
    role, privileges = json.loads(f"[{call.rpartition(']')[0]}]]")
    with guests.client() as client:
        client.admin.command("grantPrivilegesToRole", role, privileges=privileges)
    assert (run(guests).state("marks"), privileges) == (OK, marking)
    as_user(guests, *tailing, *marking[:2], right(guests, "find", "insert", collection="tailrace_undelivered"))
    found = run(guests).found("marks")
    assert "the user lacks update, remove on" in found
    assert "tailrace_undelivered" in found
    assert "tailrace_marks" not in found


def test_row_marks_without_access_control(users: Users, run: Run) -> None:
    users.configure(marks="rows")
    assert run(users).state("marks") == OK


def test_an_administrator_is_a_warning(guests: Users, run: Run) -> None:
    report = run(guests)
    assert (report.failures(), report.state("user")) == ([], WARN)
    assert "root" in report.found("user")


def test_a_wrong_password_is_one_failure_and_kafka_is_still_checked(guests: Users, run: Run) -> None:
    assert isinstance(guests.mongo, MongoServer)
    guests.configure(source={"mongo": f"mongodb://nobody:{PASSWORD}@{guests.mongo.host}:{guests.mongo.port}/"})
    report = run(guests)
    assert report.failures() == ["mongo"]
    assert "Authentication failed" in report.found("mongo")
    assert report.state("kafka") == OK
    assert "start" not in report.checks


def test_an_unavailable_server(users: Users, run: Run) -> None:
    users.configure(source={"mongo": "mongodb://127.0.0.1:1/", "link_timeout": 1})
    report = run(users)
    assert report.failures() == ["mongo"]
    assert "Start MongoDB" in report.remedy("mongo")
    assert report.state("offsets topic") == OK


class Standalone(MongoServer):
    """A server without a replica set."""

    def _launch(self) -> None:
        alone = mongo_local.command(self.port, self.data_dir, None, [])
        self.process.launch(alone, mongo_local.ENVIRONMENT)

    def _unready(self, client: object, hello: dict[str, Any]) -> str | None:
        return None if hello["isWritablePrimary"] else "it is not ready"


def test_a_standalone_server(kafka: KafkaBroker, tmp_path: Path, run: Run) -> None:
    with Standalone(choice=ServerChoice.LOCAL) as server:
        users = open_users(server, kafka, tmp_path)
        users.configure(source={"mongo": server.direct_uri})
        report = run(users)
        assert report.failures() == ["replica set"]
        assert "--replSet" in report.remedy("replica set")
        assert "start" not in report.checks


def test_a_set_with_a_member_down(mongo_set: MongoReplicaSet, kafka: KafkaBroker, tmp_path: Path, run: Run) -> None:
    users = open_users(mongo_set, kafka, tmp_path)
    assert run(users).state("members") == OK
    member = next(each for each in mongo_set.members if each is not mongo_set.await_primary())
    member.kill()
    try:
        wait_until(lambda: run(users).state("members") == WARN, 60, what="the loss of a member")
        report = run(users)
        assert "2 of 3" in report.found("members")
        assert report.failures() == []
    finally:
        member.start()


def test_a_missing_collection_that_the_user_may_not_create(guests: Users, run: Run) -> None:
    privileges = user_commands(guests.database, "none", "", "")[0].body["privileges"]
    as_user(guests, *privileges)
    guests.configure(source={"collection": f"{guests.database}.none"})
    report = run(guests)
    assert report.failures() == ["collection"]
    assert "may not create it" in report.found("collection")
    guests.configure(source={"create": False})
    assert "source.create is false" in run(guests).found("collection")
    with guests.client() as client:
        client[guests.database].create_collection("none")
    assert run(guests).failures() == []


def test_views_and_time_series(users: Users, run: Run) -> None:
    with users.client() as client:
        client[users.database].create_collection("view", viewOn="outbox", pipeline=[])
        client[users.database].create_collection("series", timeseries={"timeField": "at"})
    for name, expected in (("view", "is a view"), ("series", "is a timeseries")):
        users.configure(source={"collection": f"{users.database}.{name}"})
        report = run(users)
        assert "collection" in report.failures()
        assert expected in report.found("collection")
        assert "start" not in report.checks


def test_documents_that_do_not_fit(users: Users, run: Run) -> None:
    users.insert()
    with users.client() as client:
        client[users.database].outbox.insert_many([{"id": 1}, {"id": 2}])
    users.insert(event_type=None)
    report = run(users)
    assert (report.failures(), report.state("fields")) == ([], WARN)
    assert "the document has no field 'event_id' (2 of 4)" in report.found("fields")
    assert "'event_type', the event's type, is NULL (1 of 4)" in report.found("fields")
    assert "outbox.columns" in report.remedy("fields")
    users.configure(outbox={"columns": {"key": "who"}})
    assert "no field 'who'" in run(users).found("fields")


def test_a_rule_on_a_missing_field(users: Users, run: Run) -> None:
    rule = {"topic": users.topic, "match": {"aggregate": "user", "column": {"tenant": "acme"}}}
    (users.folder / "topics" / "users.yaml").write_text(json.dumps(rule))
    assert "rules" not in run(users).checks, "an empty collection shows nothing"
    users.insert()
    report = run(users)
    assert (report.failures(), report.state("rules")) == ([], WARN)
    assert "match.column.tenant uses tenant" in report.found("rules")
    users.insert(tenant="acme")
    assert "rules" not in run(users).checks


def test_the_order_of_existing_documents(users: Users, run: Run) -> None:
    users.insert()
    users.configure(source={"start": "beginning", "order_by": ["created_at", "_id"]})
    report = run(users)
    assert report.failures() == ["order_by"]
    assert 'createIndex({"created_at": 1, "_id": 1})' in report.remedy("order_by")
    with users.client() as client:
        client[users.database].outbox.create_index({"created_at": 1, "_id": 1})
    report = run(users)
    assert (report.failures(), report.found("order_by")) == ([], "created_at, _id")
    users.configure(source={"start": "now", "order_by": ["nothing"]})
    assert "order_by" not in run(users).checks


def test_several_collections(mongo: MongoServer, kafka: KafkaBroker, tmp_path: Path, run: Run) -> None:
    users = open_users(mongo, kafka, tmp_path, collections=("outbox", "outbox_eu"))
    users.start().stop()
    assert run(users).failures() == []
    users.configure(source={"collection": [f"{users.database}.outbox"]})
    report = run(users)
    assert report.failures() == ["start"]
    assert "StreamChanged" in report.found("start")
    close_users(users)


def test_a_collection_that_was_dropped_or_recreated(users: Users, run: Run) -> None:
    users.start().stop()
    with users.client() as client:
        client[users.database].drop_collection("outbox")
        assert "does not exist" in run(users).found("start")
        client[users.database].create_collection("outbox")
        report = run(users)
    assert report.failures() == ["start"]
    assert "WrongLog" in report.found("start")
    assert "--adopt" in report.remedy("start")


def test_a_position_of_another_server(users: Users, guests: Users, run: Run) -> None:
    users.start().stop()
    users.configure(source={"mongo": guests.settings["source"]["mongo"]})
    with guests.client() as client:
        client[users.database].create_collection("outbox")
    report = run(users)
    assert report.failures() == ["start"]
    assert "belongs to database" in report.found("start")


def test_a_position_of_a_table(users: Users, run: Run, make_position: Callable[[str], None]) -> None:
    make_position(users.name)
    report = run(users)
    assert report.failures() == ["start"]
    assert "is not a position of MongoDB" in report.found("start")


@pytest.fixture
def make_position(kafka: KafkaBroker) -> Callable[[str], None]:
    """Stores a position of Postgres under a pipeline's name."""

    def make(pipeline: str) -> None:
        position = LsnPosition(LogIdentity("1", 1, "shop", "s", "public.outbox", "x"), 1, 1)
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        producer.produce("tailrace-offsets", json.dumps(to_stored(position)), pipeline)
        assert producer.flush(30) == 0

    return make


def test_a_pipeline_whose_position_was_lost(users: Users, run: Run) -> None:
    users.start().stop()
    users.configure(kafka={"offsets_topic": f"{users.name}-offsets"})
    report = run(users)
    assert report.failures() == ["start"]
    assert "PositionForgotten" in report.found("start")


def test_an_oplog_that_no_longer_has_the_position(kafka: KafkaBroker, tmp_path: Path, run: Run) -> None:
    with MongoServer(oplog_mb=16, choice=ServerChoice.LOCAL) as server:
        users = open_users(server, kafka, tmp_path)
        users.start().stop()
        assert run(users).failures() == []
        with server.client() as client:
            bulk = client[users.database].bulk

            def forgotten() -> bool:
                bulk.insert_many([{"x": "x" * 1_000_000} for _ in range(16)])
                bulk.delete_many({})
                return run(users).failures() == ["start"]

            wait_until(forgotten, 120, what="the position to leave the oplog")
        report = run(users)
        assert "HistoryLost" in report.found("start")
        assert report.state("oplog") == WARN
        assert "minRetentionHours" in report.remedy("oplog")


def test_a_slow_search_after_the_position_is_no_failure(guests: Users, run: Run) -> None:
    guests.start().stop()
    broken = {"failCommands": ["getMore"], "closeConnection": True, "appName": f"tailrace {guests.name} (observer)"}
    with guests.client() as client:
        client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=broken)
    report = run(guests)
    assert (report.failures(), report.state("start")) == ([], WARN)
    assert run(guests).state("start") == OK


def test_output_as_a_table(users: Users, capsys: pytest.CaptureFixture[str]) -> None:
    users.configure(source={"create": False, "collection": f"{users.database}.none"})
    with pytest.raises(SystemExit) as caught:
        main(["check", str(users.file)])
    output = capsys.readouterr().out
    assert caught.value.code == 1
    assert "  remedy: db.getSiblingDB(" in output
    assert "1 failed" in output.splitlines()[-1]


def test_a_wrong_clock(users: Users, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(users).state("clock") == OK
    monkeypatch.setattr(preflight_mongo, "time", SimpleNamespace(**{**vars(time), "time": lambda: time.time() + 7300}))
    report = run(users)
    assert (report.state("clock"), "2 h behind this machine's" in report.found("clock")) == (WARN, True)


def test_a_start_with_a_view_fails_with_its_own_error(users: Users) -> None:
    with users.client() as client:
        client[users.database].command("create", "seen", viewOn=OUTBOX, pipeline=[])
    users.configure(source={"collection": f"{users.database}.seen"})
    connector = users.start(wait=False)
    connector.failed("ConfigError", exit_code=2)
    assert "is not a collection but a view" in connector.log
