"""Command line, options and addresses of MongoDB, without starting it."""

from __future__ import annotations

import socket
from importlib import metadata
from pathlib import Path

import pytest
from pymongo.uri_parser import parse_uri

from tailrace.testkit.stack import MongoReplicaSet, MongoServer, ServerChoice, StackError, mongo, mongo_local


def test_the_program_of_the_wheel_is_found() -> None:
    assert mongo_local.program().name == "mongod"
    assert mongo_local.program().is_file()


def test_a_missing_wheel_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(StackError, match=mongo_local.DISTRIBUTION) as caught:
        mongo_local.program()
    assert "TAILRACE_STACK_MONGO" in caught.value.remedy


def test_parameters_of_the_caller_replace_the_defaults() -> None:
    options = mongo_local.options("set", {"enableTestCommands": "0", "ttlMonitorSleepSecs": "1"}, 7)
    assert "enableTestCommands=0" in options
    assert "enableTestCommands=1" not in options
    assert "ttlMonitorSleepSecs=1" in options
    assert options[options.index("--oplogSize") + 1] == "7"
    assert "--oplogSize" not in mongo_local.options("set", {}, None)


def test_it_listens_on_the_loopback_address_only() -> None:
    argv = mongo_local.command(4711, Path("data"), None, [])
    assert argv[argv.index("--bind_ip") + 1] == "127.0.0.1"
    assert "--nounixsocket" in argv
    assert "--auth" not in argv
    assert "--auth" in mongo_local.command(4711, Path("data"), Path("key"), [])


def test_each_replica_set_has_a_unique_name() -> None:
    names = {
        server.set_name for server in (MongoServer(choice=ServerChoice.LOCAL), MongoServer(choice=ServerChoice.LOCAL))
    }
    assert len(names) == 2
    several = MongoReplicaSet()
    assert {member.set_name for member in several.members} == {several.set_name}


def test_the_set_configuration_lists_the_members_with_a_short_election_timeout() -> None:
    config = mongo_local.set_config("set", ["a:1", "b:2"])
    assert config["members"] == [{"_id": 0, "host": "a:1"}, {"_id": 1, "host": "b:2"}]
    assert config["settings"]["electionTimeoutMillis"] <= 2000


def test_special_characters_of_a_user_are_escaped_in_the_uri() -> None:
    server = MongoServer(choice=ServerChoice.LOCAL)
    server._port = 4711
    parsed = parse_uri(server._uri("a@b", "c:d/e%+ f"))
    assert (parsed["username"], parsed["password"]) == ("a@b", "c:d/e%+ f")
    assert parsed["nodelist"] == [("127.0.0.1", 4711)]
    assert parsed["options"]["replicaSet"] == server.set_name


def test_a_missing_driver_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mongo, "find_spec", lambda _name: None)
    with pytest.raises(StackError, match="pymongo") as caught:
        MongoServer(choice=ServerChoice.LOCAL)
    assert ".[mongo]" in caught.value.remedy


def test_without_the_driver_a_listening_port_counts_as_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mongo, "find_spec", lambda _name: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"mongodb://root:s%40x@127.0.0.1:{server.getsockname()[1]}/?replicaSet=rs0"
        assert mongo.answers(address, 2)
    assert not mongo.answers(address, 2)


def test_a_server_given_by_address_cannot_advertise_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_STACK_MONGO", "mongodb://db:27017/?replicaSet=theirs")
    with pytest.raises(StackError, match="proxy"):
        MongoServer().advertise(4711)


def test_users_can_be_created_on_local_servers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_STACK_MONGO", "mongodb://db:27017/?replicaSet=theirs")
    with pytest.raises(StackError, match="users"):
        MongoServer(auth=True)


def test_an_address_of_several_members_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "mongodb://one:27017,two:27018/?replicaSet=theirs"
    monkeypatch.setenv("TAILRACE_STACK_MONGO", address)
    server = MongoServer()
    assert (server.uri, server.direct_uri) == (address, address)
