"""Helpers for tests of `tailrace recover`: a pipeline that has run, the command, and the check by the oracle."""

from __future__ import annotations

import io
import json
import os
import subprocess
from contextlib import redirect_stdout
from typing import Any

import pytest
import typer

from helpers import warm_processes as warm
from helpers.service import Service
from helpers.shop import Shop
from tailrace.cli.recover.command import app
from tailrace.config.load import load_pipeline
from tailrace.errors import TailraceError
from tailrace.sources.postgres.snapshot import Snapshot
from tailrace.state import position_history
from tailrace.state.position_history import PositionEntry
from tailrace.testkit.oracle import OracleVerdict, backward_positions
from tailrace.testkit.stack import wait_until
from tailrace.testkit.topic_reader import stored_positions
from tailrace.testkit.workload.writer import Mix
from tailrace.worker.options import kafka_options

PATIENCE = 180
"""Seconds for one command; an open transaction delays readers for a minute."""


def ran_before(service: Service) -> None:
    """The pipeline has published what one writer wrote, and is stopped."""
    connector = service.start()
    service.writer(mix=Mix(savepoint=0.3, rollback=0.2))
    work(service)
    assert not service.caught_up().missing
    assert connector.stop() == 0


def work(service: Service, transactions: int = 3) -> None:
    """Transactions of three events each."""
    for _ in range(transactions):
        service.writers[0].transaction(3, rollback=False)


def goes_on(service: Service) -> None:
    """After the recovery: the pipeline starts, publishes new events, and every event is there exactly once."""
    connector = service.start()
    work(service, 1)
    right(service)
    assert connector.stop() == 0


def slot_dropped(shop: Shop) -> None:
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    work(shop)


def offsets_deleted(service: Service, *, writes: bool = True) -> None:
    """Deletes the stored position and the position history; the service `writes` before."""
    if writes:
        work(service)
    topic = service.settings["kafka"]["offsets_topic"]
    admin = service.kafka.admin()
    for each in admin.delete_topics([topic, f"{topic}-ledger"]).values():
        each.result(20)
    gone = {topic, f"{topic}-ledger"}
    wait_until(lambda: gone.isdisjoint(admin.list_topics(timeout=10).topics), what="the topics to go")


def recover(service: Service, command: str, *arguments: str, kill: str = "") -> subprocess.CompletedProcess[str]:
    """Runs `tailrace recover plan|apply --json`."""
    env = {**os.environ, "TAILRACE_KILL": kill}
    return warm.run("recover", command, str(service.file), "--json", *arguments, env=env, timeout=PATIENCE)


def plan(service: Service, *arguments: str) -> dict[str, Any]:
    return _output(service, "plan", *arguments)


def apply(service: Service, *arguments: str) -> dict[str, Any]:
    """Runs a recovery to its end."""
    return _output(service, "apply", "--yes", *arguments)


def refused(service: Service, code: str, *arguments: str) -> str:
    """Runs a recovery that must be refused with this error; returns its text."""
    with pytest.raises(TailraceError) as error:
        _output(service, "apply", "--yes", *arguments)
    assert error.value.code == code, error.value
    return str(error.value)


def report(service: Service, command: str, *arguments: str) -> str:
    """Returns the report for people; runs in this process, which is faster."""
    said = io.StringIO()
    with redirect_stdout(said):
        typer.main.get_command(app)([command, str(service.file), *arguments], standalone_mode=False)
    return said.getvalue()


def _output(service: Service, command: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report(service, command, "--json", *arguments))
    return found


def right(service: Service) -> OracleVerdict:
    """Nothing is missing or duplicated; positions increase from the last one of the recovery on."""
    verdict = service.caught_up()
    topic = service.settings["kafka"].get("offsets_topic", "tailrace-offsets")
    stored = stored_positions(service.kafka.bootstrap, service.name, topic)
    marked = [number for number, position in enumerate(stored) if getattr(position, "recovery", None)]
    assert marked, "no recovery has stored anything"
    verdict.positions = backward_positions([position.progress for position in stored[marked[-1] :]])
    assert verdict.ok, verdict
    return verdict


def entries(service: Service) -> list[PositionEntry]:
    return position_history.read(kafka_options(load_pipeline(service.file)))


def passed_all(shop: Shop) -> None:
    """Waits until the position history shows that all current rows were passed."""
    last = int(shop.execute("SELECT max(xmin::text::bigint) FROM outbox")[0][0])

    def noted() -> bool:
        shop.execute("SELECT pg_current_xact_id()")
        found = entries(shop)
        return bool(found and found[-1].passed and Snapshot.parse(found[-1].passed).xmin > last)

    wait_until(noted, 60, what="the position history to have passed all rows")
