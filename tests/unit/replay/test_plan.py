"""The file of a plan can be read again, and a changed file is refused."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.event import OutboxEvent, Row
from tailrace.kafka.client import KafkaOptions
from tailrace.positions.postgres import LogIdentity, LsnPosition, TableRead
from tailrace.replay.apply import is_done, replay_options
from tailrace.replay.estimate import EXAMPLES, Estimate
from tailrace.replay.plan import ReplayPlan, Selection, new_id, read_plan

LOG = LogIdentity("1", 1, "shop", "slot", "public.outbox", "p")
END = LsnPosition(LOG, 900, 5)
FIGURES = Estimate(3, Counter(A=2, B=1), Counter({"shop.orders": 3}), Counter(poison_message=1), [], 10, 20, 7, 0.5)


def plan(**changes: Any) -> ReplayPlan:
    made = ReplayPlan(
        id="k7xq2m",
        pipeline="orders",
        settings="orders.yaml",
        made_ms=1_773_403_200_123,
        origin="table",
        target="shadow",
        suffix=".shadow",
        given=("24h", ""),
        start=LsnPosition(LOG, 900, 5, table_read=TableRead("7:7:")),
        end=END,
        selection=Selection(types=("A",), since_ms=3),
        estimate=FIGURES,
        notes=("a note",),
        consumers=({"projection": "summary"},),
    )
    return replace(made, **changes)


def test_a_plan_is_written_and_read(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan().write(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_plan(file) == plan()
    assert json.loads(file.read_text())["figures"]["passes"] == 2


def test_no_plan_is_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan().write(file)
    with pytest.raises(ConfigError, match="exists already"):
        plan(id="other").write(file)
    assert read_plan(file).id == "k7xq2m"
    with pytest.raises(ConfigError, match="cannot be written"):
        plan().write(tmp_path / "none" / "plan.json")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda fields: fields | {"target": "same"}, "was changed"),
        (lambda fields: fields | {"selection": {**fields["selection"], "types": []}}, "was changed"),
        (lambda fields: fields | {"format": 2}, "format 2"),
        (lambda fields: {name: value for name, value in fields.items() if name != "digest"}, "missing"),
        (lambda fields: ["a plan"], "missing"),
    ],
)
def test_a_changed_plan_is_refused(tmp_path: Path, change: Any, why: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(change(plan().to_json())))
    with pytest.raises(ConfigError, match=why) as caught:
        read_plan(file)
    assert "tailrace replay plan" in caught.value.remedy


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_plan(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("orders.yaml")
    with pytest.raises(ConfigError, match="not JSON"):
        read_plan(tmp_path / "text.json")


def test_a_plan_is_done_when_its_end_is_stored() -> None:
    assert not is_done(plan(), None)
    assert not is_done(plan(), plan().start)
    assert is_done(plan(), END)


def test_a_replay_has_a_transactional_id_of_its_own() -> None:
    options = replay_options(KafkaOptions("kafka:9092", "orders", exactly_once=False, dead_letter_topic="dead"), plan())
    assert options.pipeline == "orders.replay-k7xq2m"
    assert options.exactly_once
    assert options.dead_letter_topic == "dead.shadow"
    assert len({new_id() for _ in range(100)}) == 100


def test_the_estimate_counts_passes_and_failures() -> None:
    estimate = Estimate()
    event = OutboxEvent("e", "A", "order", None, b"secret", None, "0/1:1", 5, [])
    for number in range(EXAMPLES + 2):
        failure = Rejected(Reason.SCHEMA_VALIDATION_FAILED, "$.total is not a number: secret")
        estimate.note(Row((), (), f"0/1:{number}", 30 - number), event, "shop.orders", failure)
    estimate.note(Row((), (), "0/2:1", 40), None, None, Rejected(Reason.POISON_MESSAGE, "no id"))
    estimate.note(Row((), (), "0/3:1", 35), event, "shop.orders", None)
    fields = estimate.to_json()
    assert (fields["events"], fields["passes"]) == (EXAMPLES + 4, 1)
    assert fields["fails"] == {"schema_validation_failed": EXAMPLES + 2, "poison_message": 1}
    assert fields["by_type"] == {"A": EXAMPLES + 3, "(unreadable)": 1}
    assert fields["by_topic"] == {"shop.orders": EXAMPLES + 3, "(nowhere)": 1}
    assert (fields["first_ms"], fields["last_ms"]) == (30 - EXAMPLES - 1, 40)
    assert len(fields["examples"]) == EXAMPLES + 1
    assert "secret" not in json.dumps(fields)
