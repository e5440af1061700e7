"""The scratch pipeline of a drill: the user's servers, and nothing else of theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.config.load import load_pipeline, read_settings, validate_settings
from tailrace.testkit.drill.plan import plan_drill, scratch_settings
from tailrace.worker.options import kafka_options, own_topics

POSTGRES: dict[str, Any] = {
    "pipeline": "orders",
    "source": {
        "postgres": "postgresql://tailrace:${env:DB_PASSWORD}@db.example.org/shop",
        "table": "sales.outbox",
        "slot": "their_slot",
        "publication": "their_publication",
        "replay_window": "24 h",
        "link_timeout": 9,
    },
    "outbox": {"layout": "streams"},
    "topics": {"template": "shop.{stream}", "replication": 3},
    "kafka": {
        "bootstrap": "kafka.example.org:9092",
        "offsets_topic": "their-offsets",
        "dead_letter_topic": "their-dead-letters",
        "delivery": "at_least_once",
        "settings": {"sasl.password": "${env:KAFKA_PASSWORD}"},
    },
    "dead_letters": {"webhook": {"url": "https://hooks.example.org/x"}},
    "limits": {"batch_records": 50},
}
MONGO = {
    **POSTGRES,
    "source": {
        "mongo": "mongodb://${env:DB_PASSWORD}@m1:27017,m2:27017/?replicaSet=rs0",
        "collection": ["shop.outbox"],
    },
    "outbox": {"layout": "document"},
}
ENVIRON = {"DB_PASSWORD": "hidden", "KAFKA_PASSWORD": "secret"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "orders.yaml"


def scratch(file: Path, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    file.write_text(json.dumps(settings))
    (folder / "schemas").mkdir(parents=True)
    return scratch_settings(read_settings(file), plan_drill(load_pipeline(file)), folder)


@pytest.mark.parametrize("settings", [POSTGRES, MONGO], ids=["postgres", "mongo"])
def test_no_name_of_the_user_is_used(file: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    made = scratch(file, settings, tmp_path / "drill")
    text = json.dumps(made)
    assert "their" not in text
    assert "hooks" not in text
    assert not any(secret in text for secret in ENVIRON.values()), "references stay references"
    pipeline, problems = validate_settings(made, tmp_path, ENVIRON)
    assert pipeline is not None, problems
    assert pipeline.pipeline == "orders-drill"
    assert pipeline.kafka.delivery == "at_least_once"
    assert pipeline.limits.batch_records == 50
    assert all(topic.startswith("orders-drill") for topic in own_topics(kafka_options(pipeline)))
    assert pipeline.topics.template == "orders-drill.events"
    if pipeline.source.mongo is None:
        assert (pipeline.source.table, pipeline.source.slot) == (
            "sales.tailrace_orders_drill", "tailrace_orders_drill",
        )  # fmt: skip
        assert pipeline.source.publication == pipeline.source.slot
        assert pipeline.source.link_timeout == 9
        assert not pipeline.source.replay_window
    else:
        assert pipeline.source.collection == ("shop.tailrace_orders_drill",)


def test_a_setting_of_the_environment_counts(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_KAFKA__BOOTSTRAP", "staging:9092")
    assert scratch(file, POSTGRES, tmp_path / "drill")["kafka"]["bootstrap"] == "staging:9092"


def test_a_long_name_still_fits(file: Path) -> None:
    file.write_text(json.dumps({**POSTGRES, "pipeline": "o" * 48}))
    plan = plan_drill(load_pipeline(file))
    assert len(plan.name) == 48
    assert plan.name.endswith("-drill")
