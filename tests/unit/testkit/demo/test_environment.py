"""Starting the servers of the demo: the progress messages, and raising the first failure."""

from __future__ import annotations

import sys
import threading
from contextlib import closing

import pytest

from tailrace.testkit.demo.environment import DemoEnvironment, DemoServers, current_step
from tailrace.testkit.stack import MongoServer, StackError, mongo_local


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ([], ""),
        (["fetching Kafka"], "fetching Kafka"),
        (["fetching Kafka", "preparing Kafka"], "preparing Kafka"),
        (["preparing Kafka", "starting Kafka"], "preparing Kafka"),
        (["preparing Kafka", "starting Kafka", "starting Kafka"], "starting Kafka"),
    ],
)
def test_the_current_step_is_shown(reported: list[str], expected: str) -> None:
    assert current_step(reported) == expected


def test_a_failure_does_not_wait_for_the_other_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = DemoServers("16")
    never = threading.Event()

    def fail() -> None:
        raise StackError("no Postgres", remedy="fix")

    monkeypatch.setattr(servers.postgres, "start", fail)
    for server in servers.all:
        if server is not servers.postgres:
            monkeypatch.setattr(server, "start", never.wait)
    with pytest.raises(StackError, match="no Postgres"):
        servers.start(lambda _: None)
    never.set()
    servers.close()


def test_without_faust_there_is_no_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(DemoEnvironment()) as environment:
        assert [projection.NAME for projection in environment.projections] == ["order_summary"]
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    with closing(DemoEnvironment()) as environment:
        assert environment.projections == []


def test_without_mongodb_there_is_no_users_service(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise StackError("the wheel is not installed")

    monkeypatch.delenv(MongoServer.VARIABLE, raising=False)
    monkeypatch.setattr(mongo_local, "program", absent)
    with closing(DemoEnvironment()) as environment:
        assert environment.servers.mongo is None
        assert [service.NAME for service in environment.services] == ["orders"]
    monkeypatch.setenv(MongoServer.VARIABLE, "mongodb://127.0.0.1:1/")
    with closing(DemoEnvironment()) as environment:
        assert [service.NAME for service in environment.services] == ["orders", "users"]
        assert not environment.servers.ours
