"""The schemas and routing rules of the demo fit each other, the services and the pipeline files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.config.load import load_pipeline
from tailrace.routing.folder import load_topics
from tailrace.schemas.folder import load_folder
from tailrace.testkit.demo import environment, orders
from tailrace.testkit.demo.environment import example_folder
from tailrace.testkit.demo.service import Service
from tailrace.testkit.stack import KafkaBroker, MongoServer

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("name", ["schemas", "topics"])
def test_the_demo_reads_the_folders_of_the_repository(name: str) -> None:
    assert not (ROOT / name).is_symlink()
    assert example_folder(name) == ROOT / name


@pytest.fixture
def services() -> Iterator[list[Service]]:
    with closing(environment.DemoEnvironment()) as opened:
        yield opened.services


def test_there_is_a_rule_for_each_service(services: list[Service]) -> None:
    topics = {spec.topic for spec in load_topics(example_folder("topics"))}
    assert {service.topic for service in services} == topics
    for service in services:
        assert f"topic: {service.topic}\n" in (example_folder("topics") / f"{service.NAME}.yaml").read_text()


def test_the_schemas_load() -> None:
    load_folder(example_folder("schemas"))
    for file in example_folder("schemas").glob("*/1.json"):
        assert json.loads(file.read_text())["title"] == file.parent.name


def test_the_pipeline_files_load_with_the_intended_settings(
    services: list[Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaBroker, "bootstrap", "127.0.0.1:9092")
    monkeypatch.setattr(MongoServer, "uri", "mongodb://127.0.0.1:1/?replicaSet=rs0")
    monkeypatch.setattr(orders.Orders, "url", 'host=127.0.0.1 port=1 user=postgres password=p%40"ss dbname=shop')
    for name in ("schemas", "topics"):
        (tmp_path / name).mkdir()
    settings = {}
    for service in services:
        (tmp_path / f"{service.NAME}.yaml").write_text(service.pipeline_text())
        settings[service.NAME] = load_pipeline(tmp_path / f"{service.NAME}.yaml")
        assert settings[service.NAME].kafka.dead_letter_topic == f"{service.NAME}.dead-letters"
    assert settings["orders"].source.postgres is not None
    assert settings["orders"].source.postgres.reveal().endswith('password=p%40"ss dbname=shop')
    assert settings["orders"].source.slot == "tailrace_orders"
    assert settings["users"].source.mongo is not None
    assert settings["users"].source.mongo.reveal() == "mongodb://127.0.0.1:1/?replicaSet=rs0"
    assert settings["users"].source.collection == ("shop.outbox",)
    assert settings["users"].outbox.layout == "document"


def test_the_address_is_shown_as_a_url() -> None:
    url = orders.as_url("host=127.0.0.1 port=5433 user=postgres password='a/b c' dbname=shop")
    assert url == "postgresql://postgres:a%2Fb%20c@127.0.0.1:5433/shop"
