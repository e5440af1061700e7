"""Starting both servers: what is told meanwhile, and that the first failure is the one that is raised."""

from __future__ import annotations

import threading

import pytest

from tailrace.demo.servers import Servers, current
from tailrace.stack import StackError


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([], ""),
        (["fetching Kafka"], "fetching Kafka"),
        (["fetching Kafka", "preparing Kafka"], "preparing Kafka"),
        (["preparing Kafka", "starting Kafka"], "preparing Kafka"),
        (["preparing Kafka", "starting Kafka", "starting Kafka"], "starting Kafka"),
    ],
)
def test_the_step_that_goes_on(told: list[str], expected: str) -> None:
    assert current(told) == expected


def test_a_failure_does_not_wait_for_the_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers("16")
    never = threading.Event()

    def fail() -> None:
        raise StackError("no Postgres", remedy="mend")

    monkeypatch.setattr(servers.postgres, "start", fail)
    monkeypatch.setattr(servers.kafka, "start", never.wait)
    with pytest.raises(StackError, match="no Postgres"):
        servers.start(lambda _: None)
    never.set()
    servers.close()
