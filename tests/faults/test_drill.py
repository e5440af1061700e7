"""`tailrace drill` on real servers: it passes, finds a broken connector, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from helpers import warm_processes as warm
from helpers.command import Tailrace
from helpers.mutations import CONFIRM_EARLY
from helpers.service import Service
from helpers.shop import Shop
from helpers.users import Users
from tailrace.testkit.drill.run import Drill, StepResult
from tailrace.testkit.stack import wait_until

QUICK = ("--staging", "--yes", "--rate", "40", "--hold", "1")
MAIN = """
import sys
from tailrace.testkit.drill.connector import main
sys.exit(main())
"""
DROPS_RECORDS = """
from tailrace.kafka.publisher import Publisher
publish = Publisher._publish
def lose(self, batch):
    if len(batch.records) > 1:
        del batch.records[-1]
    publish(self, batch)
Publisher._publish = lose
"""


def left_behind(service: Service) -> list[str]:
    """Returns what the drill of a service has created and not removed."""
    topics = service.kafka.admin().list_topics(timeout=20).topics
    found = [topic for topic in topics if topic.startswith(f"{service.name}-drill")]
    if isinstance(service, Shop):
        for catalog, column in (
            ("pg_replication_slots", "slot_name"), ("pg_publication", "pubname"), ("pg_class", "relname"),
        ):  # fmt: skip
            rows = service.execute(f"SELECT {column} FROM {catalog} WHERE {column} ~ '^tailrace_.*_drill$'")
            found += [str(row[0]) for row in rows if service.name in str(row[0])]
    elif isinstance(service, Users):
        with service.client() as client:
            found += [name for name in client[service.name].list_collection_names() if "drill" in name]
    return found


def passes(service: Service, tailrace: Tailrace) -> dict[str, Any]:
    """Runs a whole drill next to the pipeline, which must not notice."""
    connector = service.start()
    writer = service.writer()
    writer.start(rate=20)
    result = tailrace("drill", service.file, *QUICK)
    assert result["ok"]
    assert not left_behind(service)
    writer.stop()
    verdict = service.caught_up()
    assert verdict.ok, verdict
    assert connector.log.count('"running"') == 1, connector.log
    assert '"waiting"' not in connector.log, connector.log
    found: dict[str, Any] = {step["step"]: step for step in result["steps"]}
    assert found["bad-payloads"]["verdict"]["dead_lettered"] > found["suspend"]["verdict"]["dead_lettered"] == 0
    published = [step["verdict"]["published"] for step in result["steps"]]
    assert published == sorted(published)
    assert published[0] < published[-1]
    return found


@pytest.mark.slow
def test_a_drill_passes_next_to_the_pipeline(shop: Shop, tailrace: Tailrace) -> None:
    found = passes(shop, tailrace)
    assert list(found) == [
        "start", "kill", "cut-database", "database-away", "end-session", "cut-kafka", "kafka-away", "suspend",
        "bad-payloads", "second-instance", "stop",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_drill_on_mongodb(users: Users, tailrace: Tailrace) -> None:
    assert "end-session" not in passes(users, tailrace)


@pytest.mark.parametrize(
    ("sabotage", "red"),
    [
        pytest.param("", set(), marks=pytest.mark.slow),
        (DROPS_RECORDS, {"missing"}),
        pytest.param(CONFIRM_EARLY, {"missing", "positions"}, marks=pytest.mark.slow),
    ],
    ids=["sound", "a record is dropped", "confirmed before it is stored"],
)
def test_a_broken_connector_is_found(shop: Shop, tmp_path: Path, sabotage: str, red: set[str]) -> None:
    """The same steps with and without a defect in the connector."""
    script = tmp_path / "connector.py"
    script.write_text(sabotage + MAIN)
    results: list[StepResult] = []
    with Drill(shop.file, rate=40, hold=1, seed=1, program=[str(script)], patience=3) as drill:
        try:
            result = drill.run(lambda _: None, results.append, ["kill", "kafka-away"])
        finally:
            drill.end()
            removed = drill.clean()
    assert result.ok is not bool(red), result.as_json()
    counts = results[-1].verdict
    # A connector that confirmed too early may notice it and stop, which is red as well.
    assert {name for name in ("missing", "duplicated", "out_of_order", "positions") if counts[name]} <= red, counts
    assert f"table public.tailrace_{shop.name}_drill" in removed
    assert not left_behind(shop)


@pytest.mark.slow
def test_a_killed_drill_is_cleaned_up(shop: Shop, tailrace: Tailrace) -> None:
    """Its connector dies with it; the next command removes what is left. Nothing happens without --staging."""
    refused = tailrace("drill", shop.file, "--yes", code=2)
    assert "--staging" in refused["remedy"]
    assert not left_behind(shop)
    output = shop.folder / "drill.log"
    command = warm.Process(
        [*warm.TAILRACE, "drill", str(shop.file), "--staging", "--yes", "--step", "suspend", "--hold", "600"],
        output=output, env=dict(os.environ),
    )  # fmt: skip
    wait_until(lambda: "suspend:" in output.read_text() or command.poll() is not None, 120, what="the drill")
    command.send_signal(signal.SIGKILL)
    command.wait(30)
    assert len(left_behind(shop)) > 4, left_behind(shop)
    removed = tailrace("drill", shop.file, "--staging", "--clean")["removed"]
    assert f"slot tailrace_{shop.name}_drill" in removed
    assert not left_behind(shop)
    assert tailrace("drill", shop.file, "--staging", "--clean") == {"removed": []}


@pytest.mark.slow
def test_ctrl_c_removes_everything(shop: Shop) -> None:
    output = shop.folder / "drill.log"
    command = warm.Process(
        [*warm.TAILRACE, "drill", str(shop.file), "--staging", "--yes", "--step", "suspend", "--hold", "600"],
        output=output, env=dict(os.environ),
    )  # fmt: skip
    wait_until(lambda: "suspend:" in output.read_text() or command.poll() is not None, 120, what="the drill")
    assert left_behind(shop)
    command.send_signal(signal.SIGINT)
    assert command.wait(120) == 130, output.read_text()
    assert not left_behind(shop)
