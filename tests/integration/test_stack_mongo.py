"""MongoDB of the local stack, the real one: a replica set of one, and of three, that come back from every death."""

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

from tailrace.testkit.stack import (
    MongoReplicaSet,
    MongoServer,
    ReplicaSetMember,
    ServerChoice,
    StackError,
    TcpProxy,
    mongo,
    wait_until,
)
from tailrace.testkit.stack.ports import HOST, free_port

pytest_plugins = ["helpers.stack"]

HISTORY_LOST = 286
UNAUTHORIZED = 13

# Starts a replica set, says who and where its members are, and then waits to be killed.
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


def gone(pid: int) -> bool:
    """Dead, whether or not its parent has noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def new_name() -> str:
    return f"test_{uuid.uuid4().hex[:12]}"


def hasty(uri: str) -> MongoClient[dict[str, Any]]:
    """A client that tries nothing twice and waits a second."""
    return MongoClient(uri, serverSelectionTimeoutMS=1000, retryReads=False, retryWrites=False)


def values(client: MongoClient[dict[str, Any]], database: str) -> list[Any]:
    return sorted(document["value"] for document in client[database].kept.find())


class TestOne:
    """A replica set of one."""

    def test_the_shared_one_commits_a_transaction_on_two_collections(self, mongo: MongoServer) -> None:
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

    def test_a_change_stream_sees_what_is_written(self, mongo: MongoServer) -> None:
        name = new_name()
        with MongoClient[dict[str, Any]](mongo.uri) as client:
            with client[name].kept.watch() as changes:
                client[name].kept.insert_one({"value": 1})
                assert next(changes)["fullDocument"]["value"] == 1
            client.drop_database(name)

    def test_it_is_a_primary_of_its_own_set_and_leaves_no_database(self) -> None:
        with MongoServer(choice=ServerChoice.LOCAL) as server, server.client() as client:
            hello = client.admin.command("hello")
            assert hello["isWritablePrimary"]
            assert hello["setName"] == server.set_name
            assert hello["hosts"] == [f"{HOST}:{server.port}"]
            assert server.version.startswith("6.0.")
            assert set(client.list_database_names()) == {"admin", "config", "local"}

    def test_parameters_reach_it_and_fail_points_work(self, own_mongo: MongoServer) -> None:
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
    def test_it_comes_back_with_its_data_on_the_same_port(self, own_mongo: MongoServer, end: str) -> None:
        uri, pid, name = own_mongo.uri, own_mongo.pid, new_name()
        with own_mongo.client() as client:
            for value in range(100):
                client[name].kept.insert_one({"value": value})
        getattr(own_mongo, end)()
        assert gone(pid)
        with hasty(uri) as client, pytest.raises(ServerSelectionTimeoutError):
            client.admin.command("ping")
        own_mongo.start()
        assert own_mongo.uri == uri
        with MongoClient[dict[str, Any]](uri) as client:
            assert values(client, name) == list(range(100))
            client[name].kept.insert_one({"value": 100})

    def test_paused_it_is_silent_and_goes_on_when_resumed(self, own_mongo: MongoServer) -> None:
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

    def test_a_port_that_another_one_took_is_given_up_and_the_other_left_alone(
        self, own_mongo: MongoServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        offers = [own_mongo.port, good := free_port()]
        monkeypatch.setattr(mongo, "free_port", lambda: offers.pop(0))
        with MongoServer(choice=ServerChoice.LOCAL) as server:
            assert server.port == good
        with own_mongo.client() as client:
            assert client.admin.command("hello")["setName"] == own_mongo.set_name

    def test_an_address_in_the_environment_is_used_and_left_alone(
        self, own_mongo: MongoServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TAILRACE_STACK_MONGO", own_mongo.uri)
        with MongoServer() as named:
            assert (named.local, named.uri, named.port) == (False, own_mongo.uri, own_mongo.port)
            assert named.version == own_mongo.version
            with pytest.raises(StackError, match="not local"):
                named.kill()
        assert own_mongo.running

    def test_a_small_oplog_forgets(self) -> None:
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
            wait_until(forgotten, 60, what="the end of what the oplog remembers")


class TestBehindAProxy:
    def test_who_asks_for_the_members_goes_through_it_and_feels_a_cut(self) -> None:
        with MongoServer(choice=ServerChoice.LOCAL) as server, TcpProxy((server.host, server.port)) as proxy:
            server.advertise(proxy.port)
            with hasty(server.uri) as client, server.client() as direct:
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

    def test_a_restarted_one_is_still_known_by_the_proxy(self) -> None:
        with MongoServer(choice=ServerChoice.LOCAL) as server, TcpProxy((server.host, server.port)) as proxy:
            server.advertise(proxy.port)
            uri = server.uri
            server.kill()
            server.start()
            with MongoClient[dict[str, Any]](uri) as client:
                client.shop.kept.insert_one({"value": 1})
                assert client.nodes == {(HOST, proxy.port)}

    def test_one_that_starts_behind_a_proxy_that_refuses_says_so(self) -> None:
        with MongoServer(choice=ServerChoice.LOCAL) as server, TcpProxy((server.host, server.port)) as proxy:
            server.advertise(proxy.port)
            server.kill()
            proxy.refuse()
            server._launch()
            lost = f"cannot reach itself at port {proxy.port}"
            wait_until(lambda: lost in (server._not_ready() or ""), 60, what="a word on the proxy")

    def test_a_proxy_that_does_not_lead_to_it_is_refused(self, own_mongo: MongoServer) -> None:
        before = own_mongo.uri
        with TcpProxy((HOST, free_port())) as proxy, pytest.raises(OperationFailure):
            own_mongo.advertise(proxy.port)
        assert own_mongo.uri == before


class TestUsers:
    def test_nobody_gets_in_without_a_password(self, guarded: MongoServer) -> None:
        with MongoClient[dict[str, Any]](guarded.uri) as client:
            client.shop.kept.insert_one({"value": 1})
        anonymous = f"mongodb://{HOST}:{guarded.port}/?replicaSet={guarded.set_name}"
        with hasty(anonymous) as client, pytest.raises(OperationFailure) as caught:
            client.shop.kept.find_one()
        assert caught.value.code == UNAUTHORIZED
        with hasty(anonymous.replace("//", "//tailrace:wrong@")) as client, pytest.raises(OperationFailure):
            client.shop.kept.find_one()
        # The door for the first user is shut behind them.
        with hasty(anonymous) as client, pytest.raises(OperationFailure):
            client.admin.command("createUser", "another", pwd="x", roles=["root"])

    def test_a_user_may_do_what_their_roles_say(self, guarded: MongoServer) -> None:
        uri = guarded.create_user("reader", "p:a/s s@", [{"role": "read", "db": "shop"}])
        with hasty(uri) as client:
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


class TestThree:
    """A replica set of three; every test leaves all of them running."""

    def test_it_steps_down_and_another_is_elected(self, mongo_set: MongoReplicaSet) -> None:
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
    def test_the_others_go_on_without_a_primary_that_is_gone(self, mongo_set: MongoReplicaSet, end: str) -> None:
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

    def test_what_only_a_dead_primary_had_is_rolled_back(self, mongo_set: MongoReplicaSet) -> None:
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
            told = json.loads(owner.stdout.readline())
            assert len(told["pids"]) == 6
            assert not any(map(gone, told["pids"]))
            owner.send_signal(signal.SIGKILL)
            wait_until(
                lambda: all(map(gone, told["pids"])) and not any(Path(folder).exists() for folder in told["run_dirs"]),
                60,
                what="the end of all members",
            )


def follows(member: ReplicaSetMember, database: str, expected: list[Any]) -> bool:
    """Whether it has the same as the primary, and so took back what it should not have."""
    try:
        with member.client() as client:
            return values(client, database) == expected
    except PyMongoError:
        return False  # in the middle of a rollback it is not to be read


def test_the_stack_command_starts_one_when_asked(tmp_path: Path) -> None:
    def told(*arguments: str) -> dict[str, Any]:
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
        first = told("up", "--mongo")
        assert [server["server"] for server in first["servers"]] == ["Postgres", "Kafka", "MongoDB"]
        with MongoClient[dict[str, Any]](first["servers"][2]["address"]) as client:
            client.shop.kept.insert_one({"value": 1})
        # It is there already, whether or not it is asked for again.
        for again in (told("up", "--mongo"), told("up")):
            assert not again["started"]
            assert again["servers"] == first["servers"]
        assert told("status")["up"]
        reapers = [entry["reaper"] for entry in json.loads((tmp_path / "tailrace" / "stack.json").read_text())]
        os.kill(reapers[2], signal.SIGKILL)
        wait_until(lambda: gone(reapers[2]))
        assert [server["running"] for server in told("status")["servers"]] == [True, True, False]
    finally:
        assert told("down")["stopped"] == ["Postgres", "Kafka", "MongoDB"]
    assert all(map(gone, reapers))
