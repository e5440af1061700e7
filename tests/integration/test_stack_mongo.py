"""MongoDB of the local stack: replica sets of one and of three, which restart after every kind of end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient, WriteConcern
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError, ServerSelectionTimeoutError

from helpers.stack import is_dead
from tailrace.testkit.stack import (
    MongoReplicaSet,
    MongoServer,
    ReplicaSetMember,
    ServerChoice,
    StackError,
    mongo,
    wait_until,
)
from tailrace.testkit.stack.ports import HOST, free_port
from tailrace.testkit.tcp_proxy import TcpProxy

pytest_plugins = ["helpers.stack"]

HISTORY_LOST = 286
UNAUTHORIZED = 13

# Starts a replica set, prints the pids and folders of its members, and waits to be killed.
OWNER = """
import json, sys
from tailrace.testkit.stack import MongoReplicaSet
with MongoReplicaSet() as members:
    processes = [member.process for member in members.members]
    print(json.dumps({
        "pids": [pid for process in processes for pid in (process.pid, process.reaper_pid)],
        "run_dirs": [str(process.run_dir) for process in processes],
    }), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def own_mongo() -> Iterator[MongoServer]:
    with MongoServer(choice=ServerChoice.LOCAL, settings={"cursorTimeoutMillis": "54321"}) as server:
        yield server


@pytest.fixture(scope="module")
def guarded() -> Iterator[MongoServer]:
    with MongoServer(choice=ServerChoice.LOCAL, auth=True) as server:
        yield server


def new_name() -> str:
    return f"test_{uuid.uuid4().hex[:12]}"


def impatient_client(uri: str) -> MongoClient[dict[str, Any]]:
    """Returns a client without retries and with a timeout of a second."""
    return MongoClient(uri, serverSelectionTimeoutMS=1000, retryReads=False, retryWrites=False)


def values(client: MongoClient[dict[str, Any]], database: str) -> list[Any]:
    return sorted(document["value"] for document in client[database].kept.find())


class TestSingleMember:
    """A replica set of one."""

    def test_the_shared_server_commits_a_transaction_on_two_collections(self, mongo: MongoServer) -> None:
        name = new_name()
        with MongoClient[dict[str, Any]](mongo.uri) as client, client.start_session() as session:
            orders, events = client[name].orders, client[name].events
            with session.start_transaction():
                orders.insert_one({"_id": 1}, session=session)
                events.insert_one({"_id": 2}, session=session)
                assert orders.count_documents({}) == 0
            session.start_transaction()
            orders.insert_one({"_id": 3}, session=session)
            session.abort_transaction()
            assert [document["_id"] for document in orders.find()] == [1]
            assert [document["_id"] for document in events.find()] == [2]
            client.drop_database(name)

    def test_a_change_stream_returns_inserted_documents(self, mongo: MongoServer) -> None:
        name = new_name()
        with MongoClient[dict[str, Any]](mongo.uri) as client:
            with client[name].kept.watch() as changes:
                client[name].kept.insert_one({"value": 1})
                assert next(changes)["fullDocument"]["value"] == 1
            client.drop_database(name)

    def test_it_is_the_primary_of_its_set_and_creates_no_database(self) -> None:
        with MongoServer(choice=ServerChoice.LOCAL) as server, server.client() as client:
            hello = client.admin.command("hello")
            assert hello["isWritablePrimary"]
            assert hello["setName"] == server.set_name
            assert hello["hosts"] == [f"{HOST}:{server.port}"]
            assert server.version.startswith("6.0.")
            assert set(client.list_database_names()) == {"admin", "config", "local"}

    def test_parameters_are_set_and_failpoints_work(self, own_mongo: MongoServer) -> None:
        with own_mongo.client() as client:
            assert client.admin.command("getParameter", 1, cursorTimeoutMillis=1)["cursorTimeoutMillis"] == 54321
            client.admin.command(
                "configureFailPoint",
                "failCommand",
                mode={"times": 1},
                data={"failCommands": ["ping"], "errorCode": UNAUTHORIZED},
            )
            with pytest.raises(OperationFailure) as caught:
                client.admin.command("ping")
            assert caught.value.code == UNAUTHORIZED
            client.admin.command("ping")

    @pytest.mark.parametrize("end", ["kill", "stop"])
    def test_it_restarts_with_its_data_on_the_same_port(self, own_mongo: MongoServer, end: str) -> None:
        uri, pid, name = own_mongo.uri, own_mongo.pid, new_name()
        with own_mongo.client() as client:
            for value in range(100):
                client[name].kept.insert_one({"value": value})
        getattr(own_mongo, end)()
        assert is_dead(pid)
        with impatient_client(uri) as client, pytest.raises(ServerSelectionTimeoutError):
            client.admin.command("ping")
        own_mongo.start()
        assert own_mongo.uri == uri
        with MongoClient[dict[str, Any]](uri) as client:
            assert values(client, name) == list(range(100))
            client[name].kept.insert_one({"value": 100})

    def test_a_paused_server_does_not_answer_until_resumed(self, own_mongo: MongoServer) -> None:
        with own_mongo.client() as patient:
            patient.admin.command("ping")
            own_mongo.pause()
            try:
                with own_mongo.client(serverSelectionTimeoutMS=1000) as client, pytest.raises(PyMongoError):
                    client.admin.command("ping")
            finally:
                own_mongo.resume()
            assert patient.admin.command("ping")["ok"]

    def test_a_parameter_it_cannot_use_is_reported_with_its_log(self) -> None:
        server = MongoServer(choice=ServerChoice.LOCAL, settings={"noSuchThing": "1"})
        with pytest.raises(StackError, match="MongoDB ended while it was starting") as caught:
            server.__enter__()
        assert "noSuchThing" in caught.value.why

    def test_another_port_is_used_if_the_first_is_taken(
        self, own_mongo: MongoServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        offers = [own_mongo.port, good := free_port()]
        monkeypatch.setattr(mongo, "free_port", lambda: offers.pop(0))
        with MongoServer(choice=ServerChoice.LOCAL) as server:
            assert server.port == good
        with own_mongo.client() as client:
            assert client.admin.command("hello")["setName"] == own_mongo.set_name

    def test_a_server_given_by_address_is_used_and_not_stopped(
        self, own_mongo: MongoServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TAILRACE_STACK_MONGO", own_mongo.uri)
        with MongoServer() as named:
            assert (named.local, named.uri, named.port) == (False, own_mongo.uri, own_mongo.port)
            assert named.version == own_mongo.version
            with pytest.raises(StackError, match="not local"):
                named.kill()
        assert own_mongo.running

    def test_a_small_oplog_is_truncated(self) -> None:
        with MongoServer(choice=ServerChoice.LOCAL, oplog_mb=1) as server, server.client() as client:
            collection = client.shop.orders
            with collection.watch() as changes:
                collection.insert_one({})
                token = next(changes)["_id"]

            def forgotten() -> bool:
                collection.insert_one({"filler": "x" * 300_000})
                try:
                    with collection.watch(resume_after=token):
                        return False
                except OperationFailure as exc:
                    return exc.code == HISTORY_LOST

            assert not forgotten()
            wait_until(forgotten, 60, what="the truncation of the oplog")


class TestBehindAProxy:
    def test_clients_that_discover_members_use_the_proxy(self) -> None:
        with MongoServer(choice=ServerChoice.LOCAL) as server, TcpProxy((server.host, server.port)) as proxy:
            server.advertise(proxy.port)
            with impatient_client(server.uri) as client, server.client() as direct:
                client.shop.kept.insert_one({"value": 1})
                assert proxy.address in server.uri
                assert client.nodes == {(HOST, proxy.port)}
                assert proxy.connections
                with client.shop.kept.watch() as changes:
                    proxy.refuse()
                    proxy.cut()
                    with pytest.raises(AutoReconnect):
                        client.shop.kept.insert_one({"value": 2})
                    with pytest.raises(PyMongoError):
                        changes.next()
                direct.shop.kept.insert_one({"value": 3})
                proxy.restore()
                assert values(client, "shop") == [1, 3]

    def test_the_proxy_works_after_a_restart(self) -> None:
        with MongoServer(choice=ServerChoice.LOCAL) as server, TcpProxy((server.host, server.port)) as proxy:
            server.advertise(proxy.port)
            uri = server.uri
            server.kill()
            server.start()
            with MongoClient[dict[str, Any]](uri) as client:
                client.shop.kept.insert_one({"value": 1})
                assert client.nodes == {(HOST, proxy.port)}

    def test_a_start_behind_a_refusing_proxy_reports_the_proxy(self) -> None:
        with MongoServer(choice=ServerChoice.LOCAL) as server, TcpProxy((server.host, server.port)) as proxy:
            server.advertise(proxy.port)
            server.kill()
            proxy.refuse()
            server._launch()
            lost = f"cannot reach itself at port {proxy.port}"
            wait_until(lambda: lost in (server._not_ready() or ""), 60, what="a message about the proxy")

    def test_a_proxy_to_another_server_is_refused(self, own_mongo: MongoServer) -> None:
        before = own_mongo.uri
        with TcpProxy((HOST, free_port())) as proxy, pytest.raises(OperationFailure):
            own_mongo.advertise(proxy.port)
        assert own_mongo.uri == before


class TestUsers:
    def test_a_password_is_required(self, guarded: MongoServer) -> None:
        with MongoClient[dict[str, Any]](guarded.uri) as client:
            client.shop.kept.insert_one({"value": 1})
        anonymous = f"mongodb://{HOST}:{guarded.port}/?replicaSet={guarded.set_name}"
        with impatient_client(anonymous) as client, pytest.raises(OperationFailure) as caught:
            client.shop.kept.find_one()
        assert caught.value.code == UNAUTHORIZED
        with impatient_client(anonymous.replace("//", "//tailrace:wrong@")) as client, pytest.raises(OperationFailure):
            client.shop.kept.find_one()
        # The exception for the first user no longer applies.
        with impatient_client(anonymous) as client, pytest.raises(OperationFailure):
            client.admin.command("createUser", "another", pwd="x", roles=["root"])

    def test_a_user_has_the_privileges_of_their_roles(self, guarded: MongoServer) -> None:
        uri = guarded.create_user("reader", "p:a/s s@", [{"role": "read", "db": "shop"}])
        with impatient_client(uri) as client:
            assert client.shop.kept.count_documents({}) >= 0
            with pytest.raises(OperationFailure) as caught:
                client.shop.kept.insert_one({})
        assert caught.value.code == UNAUTHORIZED

    def test_users_survive_a_kill(self, guarded: MongoServer) -> None:
        uri = guarded.create_user("survivor", "secret", ["readAnyDatabase"])
        guarded.kill()
        guarded.start()
        with MongoClient[dict[str, Any]](uri) as client:
            assert client.shop.kept.find_one({"value": "never"}) is None


class TestThreeMembers:
    """A replica set of three; every test leaves all members running."""

    def test_the_primary_steps_down_and_another_is_elected(self, mongo_set: MongoReplicaSet) -> None:
        name = new_name()
        with MongoClient[dict[str, Any]](mongo_set.uri) as client:
            client[name].kept.insert_one({"value": 1})
            old = mongo_set.await_primary()
            assert mongo_set.primary() is old
            new = mongo_set.step_down()
            assert new is not old
            assert old.running
            client[name].kept.insert_one({"value": 2})
            assert client.primary == (new.host, new.port)
            assert values(client, name) == [1, 2]

    @pytest.mark.parametrize("end", ["kill", "pause"])
    def test_the_other_members_elect_a_new_primary(self, mongo_set: MongoReplicaSet, end: str) -> None:
        name = new_name()
        old = mongo_set.await_primary()
        with MongoClient[dict[str, Any]](mongo_set.uri, socketTimeoutMS=5000) as client:
            client[name].kept.insert_one({"value": 1})
            getattr(old, end)()
            try:
                new = mongo_set.await_primary(not_=old)
                assert new is not old
                with new.client() as direct:
                    direct[name].kept.insert_one({"value": 2})
            finally:
                old.start() if end == "kill" else old.resume()
            wait_until(lambda: follows(old, name, [1, 2]), 60, what="the return of the old primary")

    def test_a_write_of_a_dead_primary_alone_is_rolled_back(self, mongo_set: MongoReplicaSet) -> None:
        name = new_name()
        old = mongo_set.await_primary()
        others = [member for member in mongo_set.members if member is not old]
        with old.client() as client:
            client[name].kept.insert_one({"value": "agreed"})
            for member in others:
                member.stop_replicating()
            alone = client[name].kept.with_options(write_concern=WriteConcern(w=1, j=True))
            alone.insert_one({"value": "alone"})
            assert values(client, name) == ["agreed", "alone"]
        old.kill()
        for member in others:
            member.resume_replicating()
        with mongo_set.await_primary(not_=old).client() as client:
            client[name].kept.insert_one({"value": "later"})
            assert values(client, name) == ["agreed", "later"]
        old.start()
        wait_until(lambda: follows(old, name, ["agreed", "later"]), 60, what="the rollback of the old primary")

    def test_nothing_is_left_when_the_owner_is_killed(self) -> None:
        with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
            assert owner.stdout is not None
            found = json.loads(owner.stdout.readline())
            assert len(found["pids"]) == 6
            assert not any(map(is_dead, found["pids"]))
            owner.send_signal(signal.SIGKILL)
            wait_until(
                lambda: (
                    all(map(is_dead, found["pids"])) and not any(Path(folder).exists() for folder in found["run_dirs"])
                ),
                60,
                what="the end of all members",
            )


def follows(member: ReplicaSetMember, database: str, expected: list[Any]) -> bool:
    """Returns whether it has the same documents as the primary, after its rollback."""
    try:
        with member.client() as client:
            return values(client, database) == expected
    except PyMongoError:
        return False  # it cannot be read during a rollback


@pytest.mark.slow
def test_the_stack_command_starts_mongodb_with_its_option(tmp_path: Path) -> None:
    def stack_command(*arguments: str) -> dict[str, Any]:
        run = subprocess.run(
            [sys.executable, "-c", "from tailrace.cli import main; main()", "stack", *arguments, "--json"],
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert run.stdout, run.stderr
        answer: dict[str, Any] = json.loads(run.stdout)
        return answer

    try:
        first = stack_command("up", "--mongo")
        assert [server["server"] for server in first["servers"]] == ["Postgres", "Kafka", "MongoDB"]
        with MongoClient[dict[str, Any]](first["servers"][2]["address"]) as client:
            client.shop.kept.insert_one({"value": 1})
        # It runs already, with or without the option.
        for again in (stack_command("up", "--mongo"), stack_command("up")):
            assert not again["started"]
            assert again["servers"] == first["servers"]
        assert stack_command("status")["up"]
        reapers = [entry["reaper"] for entry in json.loads((tmp_path / "tailrace" / "stack.json").read_text())]
        os.kill(reapers[2], signal.SIGKILL)
        wait_until(lambda: is_dead(reapers[2]))
        assert [server["running"] for server in stack_command("status")["servers"]] == [True, True, False]
    finally:
        assert stack_command("down")["stopped"] == ["Postgres", "Kafka", "MongoDB"]
    assert all(map(is_dead, reapers))
