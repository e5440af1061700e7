"""The demo's files: they fit each other and the writer, and the folders at the root are the same ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.config.load import load_pipeline
from tailrace.demo import scene
from tailrace.routing.folder import load_topics
from tailrace.schemas.folder import load_folder

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["schemas", "topics"])
def test_the_folders_at_the_root_are_links_to_the_packages_own(name: str) -> None:
    assert (ROOT / name).is_symlink()
    assert (ROOT / name).resolve() == (scene.ASSETS / name).resolve()


def test_the_topic_is_the_one_the_demo_reads() -> None:
    assert [spec.topic for spec in load_topics(scene.ASSETS / "topics")] == [scene.TOPIC]


def test_the_schemas_are_usable() -> None:
    load_folder(scene.ASSETS / "schemas")
    for file in scene.ASSETS.glob("schemas/*/1.json"):
        assert json.loads(file.read_text())["title"] == file.parent.name


def test_the_pipeline_file_is_read_as_meant(tmp_path: Path) -> None:
    for name in ("schemas", "topics"):
        (tmp_path / name).mkdir()
    file = tmp_path / "orders.yaml"
    text = scene.pipeline_text(
        pipeline="orders",
        postgres='host=127.0.0.1 port=1 user=postgres password=p%40"ss dbname=shop',
        bootstrap="127.0.0.1:9092",
        letters="orders.dead-letters",
        offsets="tailrace-offsets",
    )
    file.write_text(text)
    settings = load_pipeline(file)
    assert settings.source.postgres.reveal().endswith('password=p%40"ss dbname=shop')
    assert settings.source.slot == "tailrace_orders"
    assert settings.kafka.dead_letter_topic == "orders.dead-letters"


def test_an_address_as_people_paste_it() -> None:
    url = scene.as_url("host=127.0.0.1 port=5433 user=postgres password='a/b c' dbname=shop")
    assert url == "postgresql://postgres:a%2Fb%20c@127.0.0.1:5433/shop"
