"""`tailrace status` in every state: RUNNING counts only while the slot is in use."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from helpers.command import read_status, wait_for_state
from helpers.shop import Shop
from tailrace.cli import main
from tailrace.cli import status as command
from tailrace.sources.postgres.observation import NOISE_BYTES
from tailrace.testkit.stack import wait_until

VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'

Status = Callable[[], dict[str, Any]]


@pytest.fixture
def status(shop: Shop, capsys: pytest.CaptureFixture[str]) -> Status:
    """Returns a function that runs `tailrace status` once."""
    return lambda: read_status(shop.file, capsys)


def test_never_started(status: Status) -> None:
    health = status()
    assert health["state"] == "NEVER STARTED"
    assert (health["position"], health["slot"], health["lag_bytes"], health["away"]) == (None, None, None, {})


def test_running_and_stopped(shop: Shop, status: Status) -> None:
    connector = shop.start()
    health = wait_for_state(status, "RUNNING")
    assert health["announced"]["pid"] == connector.process.pid
    assert health["slot"]["active_pid"] is not None
    assert health["since_ms"] == health["announced"]["at_ms"]
    assert health["position"] is not None
    assert connector.stop() == 0
    health = status()
    assert (health["state"], health["error"]) == ("STOPPED", None)


def test_killed(shop: Shop, status: Status) -> None:
    connector = shop.start()
    wait_for_state(status, "RUNNING")
    connector.kill()
    health = wait_for_state(status, "NOT RUNNING")
    assert health["announced"]["state"] == "RUNNING"
    assert "the slot is not in use" in health["detail"]
    assert "at most" in health["detail"]


def test_killed_on_a_server_that_reports_since_when(shop18: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    def ask() -> dict[str, Any]:
        return read_status(shop18.file, capsys)

    connector = shop18.start()
    wait_for_state(ask, "RUNNING")
    connector.kill()
    found = wait_for_state(ask, "NOT RUNNING")
    assert found["since_ms"] >= found["announced"]["at_ms"]


def test_failed(shop: Shop, status: Status) -> None:
    shop.start().stop()
    shop.execute(f"SELECT pg_drop_replication_slot('{shop.slot}')")
    assert shop.start(wait=False).ended() == 3
    health = status()
    assert (health["state"], health["error"]["code"]) == ("FAILED", "SlotMissing")
    assert "--adopt" in health["error"]["remedy"]
    assert health["slot"] is None


# Publishes slowly until the test has seen what it waits for.
SLOW = """
import os, time
from tailrace.kafka.publisher import Publisher
publish = Publisher._publish
def slowly(self, batch):
    if not os.path.exists(os.environ["SEEN"]):
        time.sleep(0.1)
    publish(self, batch)
Publisher._publish = slowly
from tailrace.cli import main
main()
"""


def test_reading_the_table_is_running_although_the_slot_is_unused(shop: Shop, status: Status) -> None:
    shop.configure(source={"start": "beginning"}, limits={"batch_records": 10})
    shop.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) "
        f"SELECT gen_random_uuid(), 'order', 'k', 'OrderPlaced', '{VALID}' FROM generate_series(1, 5000)"
    )
    script, seen = shop.folder / "slow.py", shop.folder / "seen"
    script.write_text(SLOW)
    connector = shop.start(wait=False, program=[str(script)], SEEN=str(seen))
    reading = wait_for_state(status, "RUNNING")
    assert (reading["detail"], reading["slot"]["active_pid"]) == (
        "reading the rows that existed before the first start",
        None,
    ), connector.log
    assert "reading the table" in reading["position"]
    seen.touch()
    wait_until(lambda: status()["slot"]["active_pid"] is not None, 60, what="the end of the table")
    assert wait_for_state(status, "RUNNING")["detail"] != reading["detail"]


def test_the_lag_grows_while_it_is_down_and_then_disappears(shop: Shop, status: Status) -> None:
    shop.start().stop()
    before = status()["lag_bytes"]
    shop.execute("CREATE TABLE other AS SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
    shop.insert(VALID)
    health = status()
    assert health["lag_bytes"] > before + 1_000_000
    assert health["lag_seconds"] > 0
    assert health["slot"]["retained_bytes"] > 1_000_000
    shop.start()
    shop.caught_up()

    def caught_up() -> bool:
        health = status()
        return bool(health["lag_seconds"] == 0 and health["lag_bytes"] <= NOISE_BYTES)

    wait_until(caught_up, 60, what="the end of the lag")


def test_postgres_is_unavailable(shop: Shop, status: Status) -> None:
    shop.start()
    wait_for_state(status, "RUNNING")
    shop.configure(source={"postgres": "postgresql://tailrace@127.0.0.1:1/shop"})
    health = status()
    assert (health["state"], list(health["away"])) == ("UNKNOWN", ["postgres"])
    assert health["announced"]["state"] == "RUNNING"
    assert health["position"] is not None


def test_kafka_is_unavailable(shop: Shop, status: Status) -> None:
    shop.start()
    shop.configure(kafka={"bootstrap": "127.0.0.1:1"})
    health = status()
    assert (health["state"], list(health["away"])) == ("UNKNOWN", ["kafka"])
    assert health["slot"]["active_pid"] is not None
    assert "the slot is read by" in health["detail"]


def test_output_as_text(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.start()
    with pytest.raises(SystemExit):
        main(["status", str(shop.file)])
    printed = capsys.readouterr().out
    for line in (
        f"pipeline     {shop.name}",
        "state        RUNNING since ",
        "lag          ",
        f"slot         {shop.slot}, read",
    ):
        assert line in printed


def test_watch_refreshes_until_interrupted(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C comes at the third request."""
    looks = 0
    read = command.read_health

    def read_health(settings: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise KeyboardInterrupt
        return read(settings)

    monkeypatch.setattr(command, "read_health", read_health)
    monkeypatch.setattr(command, "REFRESH_SECONDS", 0.01)
    with pytest.raises(SystemExit) as caught:
        main(["status", str(shop.file), "--watch", "--json"])
    assert caught.value.code == 130
    assert [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()] == ["NEVER STARTED"] * 2
