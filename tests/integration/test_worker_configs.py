"""Configurations of pipelines on the config topic: created over HTTP, followed by all workers, garbage skipped."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from confluent_kafka import Producer

from helpers.shop import Shop
from helpers.stack import is_dead
from helpers.worker import WorkerProcess, Workers, put_pipeline
from tailrace.config.connector import file_config
from tailrace.testkit.stack import wait_until

ORDER = '{"order": "1", "revision": 1, "amount": 1, "currency": "EUR"}'


@pytest.fixture
def topic() -> str:
    return f"configs-{uuid.uuid4().hex[:8]}"


def config_of(shop: Shop, **changes: str) -> dict[str, str]:
    """The configuration of a shop's pipeline, as a connector."""
    settings = json.loads(shop.file.read_text())
    for name in ("schemas", "topics"):
        settings[name]["folder"] = str(shop.folder / name)
    return {**file_config(settings), **changes}


def create(worker: WorkerProcess, shop: Shop, **more: Any) -> httpx2.Response:
    body = {"name": shop.name, "config": config_of(shop), **more}
    return httpx2.post(f"{worker.url}/connectors", json=body, timeout=60)


def write(shop: Shop, topic: str, records: dict[bytes | None, bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    for key, value in records.items():
        producer.produce(topic, value, key)
    assert producer.flush(30) == 0


def test_create_update_and_delete_on_two_workers(workers: Workers, shop: Shop, topic: str) -> None:
    arguments = ("--bootstrap", shop.kafka.bootstrap, "--config-topic", topic)
    first = workers.start(*arguments)
    first.says("listening")
    answer = create(first, shop)
    assert answer.status_code == 201, answer.text
    first.is_in(shop.name, "RUNNING")
    second = workers.start(*arguments)
    second.is_in(shop.name, "WAITING")
    assert create(second, shop).status_code == 409

    changed = config_of(shop, **{"limits.batch_records": "7"})
    answer = httpx2.put(f"{second.url}/connectors/{shop.name}/config", json=changed, timeout=60)
    assert answer.status_code == 200, answer.text
    for worker in (first, second):
        worker.says("configuration changed", shop.name)
        wait_until(
            lambda worker=worker: worker.get(f"/connectors/{shop.name}/config").get("limits.batch_records") == "7",
            what="the changed configuration",
        )
    event = shop.insert(ORDER)
    wait_until(lambda: [each.id for each in shop.published()] == [event], 120, what="the event")

    answer = httpx2.delete(f"{first.url}/connectors/{shop.name}", timeout=60)
    assert answer.status_code == 204, answer.text
    for worker in (first, second):
        worker.says("removed", shop.name)
        pids = [line["pid"] for line in worker.events("process started")]
        wait_until(lambda pids=pids: all(map(is_dead, pids)), what="the end of its processes")
        assert worker.get("/connectors") == []
    assert first.stop() == second.stop() == 0
    third = workers.start(*arguments)
    third.says("listening")
    wait_until(lambda: third.get("/health") is not None, what="an answer")
    assert third.get("/connectors") == []


def test_a_configuration_survives_the_worker_with_its_target_state(workers: Workers, shop: Shop, topic: str) -> None:
    arguments = ("--bootstrap", shop.kafka.bootstrap, "--config-topic", topic)
    worker = workers.start(*arguments)
    worker.says("listening")
    assert create(worker, shop, initial_state="PAUSED").status_code == 201
    worker.is_in(shop.name, "PAUSED")
    assert worker.stop() == 0
    worker = workers.start(*arguments)
    worker.is_in(shop.name, "PAUSED")
    assert not worker.events("process started")
    worker.change(shop.name, "resume")
    worker.is_in(shop.name, "RUNNING")


def test_garbage_on_the_topic_is_reported_by_key_and_skipped(
    workers: Workers, shop: Shop, topic: str, make_topic: Callable[..., None]
) -> None:
    make_topic(topic, cleanup_policy="compact")
    good = json.dumps({"config": config_of(shop)}).encode()
    write(
        shop,
        topic,
        {
            b"no-json": b"\xff\x00{",
            b"no-object": b"[1, 2]",
            b"no-texts": b'{"config": {"a": 1}}',
            b"No Name": good,
            b"\xff\xfe": good,
            b"deep": b"[" * 100_000,
            b"no-settings": b'{"config": {"connector.class": "tailrace.PostgresOutbox"}}',
            b"never-there": None,
            shop.name.encode(): good,
        },
    )
    worker = workers.start("--bootstrap", shop.kafka.bootstrap, "--config-topic", topic)
    worker.is_in(shop.name, "RUNNING")
    text = json.dumps(worker.events("invalid"), ensure_ascii=False)
    for key in ("no-json", "no-object", "no-texts", "No Name", "deep", "no-settings"):
        assert key in text
    assert worker.pipeline("no-settings")["state"] == "FAILED"
    # Garbage under the key of a running pipeline does not stop it.
    write(shop, topic, {shop.name.encode(): b"garbage"})
    wait_until(lambda: any(shop.name in line["what"] for line in worker.events("invalid")), what="the report")
    event = shop.insert(ORDER)
    wait_until(lambda: [each.id for each in shop.published()] == [event], 120, what="the event")
    assert len(worker.events("process started", shop.name)) == 1


def test_a_topic_that_is_not_compacted_is_refused(
    workers: Workers, shop: Shop, topic: str, make_topic: Callable[..., None]
) -> None:
    make_topic(topic, cleanup_policy="delete")
    worker = workers.start("--bootstrap", shop.kafka.bootstrap, "--config-topic", topic)
    assert worker.ended() == 2
    assert f"ConfigTopicUnfit: the topic {topic} has cleanup.policy=delete" in worker.log
    assert "remedy: kafka-configs --alter" in worker.log


def test_a_topic_with_several_partitions_is_refused(
    workers: Workers, shop: Shop, topic: str, make_topic: Callable[..., None]
) -> None:
    make_topic(topic, 2, cleanup_policy="compact")
    worker = workers.start("--bootstrap", shop.kafka.bootstrap, "--config-topic", topic)
    assert worker.ended() == 2
    assert "ConfigTopicUnfit" in worker.log


def test_pipelines_of_files_run_while_the_config_topic_is_unavailable(
    workers: Workers, shop: Shop, topic: str, tmp_path: Path
) -> None:
    put_pipeline(tmp_path / "pipelines", shop)
    worker = workers.start(tmp_path / "pipelines", "--bootstrap", "127.0.0.1:1", "--config-topic", topic)
    worker.is_in(shop.name, "RUNNING")
    assert worker.says("invalid")["error"] == "KafkaUnavailable"
    assert worker.stop() == 0


def test_a_file_counts_more_than_the_topic(workers: Workers, shop: Shop, topic: str, tmp_path: Path) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    worker = workers.start(folder, "--bootstrap", shop.kafka.bootstrap, "--config-topic", topic)
    worker.says("listening")
    assert create(worker, shop).status_code == 201
    worker.is_in(shop.name, "RUNNING")
    put_pipeline(folder, shop)
    wait_until(lambda: not worker.pipeline(shop.name)["from_topic"], what="the pipeline of the file")
    worker.is_in(shop.name, "RUNNING")
    answer = httpx2.delete(f"{worker.url}/connectors/{shop.name}", timeout=60)
    assert answer.status_code == 409, answer.text
    assert shop.name in answer.json()["message"]


def test_without_a_config_topic_nothing_can_be_created(workers: Workers, shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    worker = workers.start(tmp_path / "pipelines")
    worker.says("listening")
    answer = create(worker, shop)
    assert answer.status_code == 403
    assert "--bootstrap" in answer.json()["message"]
