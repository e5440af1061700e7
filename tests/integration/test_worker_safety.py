"""A worker whose own processes hang, and requests that must not reach files, code or pipelines."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import psutil

from helpers.shop import Shop
from helpers.stack import is_dead
from helpers.worker import ORDER, Workers, published, put_pipeline, suspended
from tailrace.testkit.stack import wait_until


def test_a_worker_ends_in_time_although_its_warm_process_hangs(workers: Workers, pipelines: Path, shop: Shop) -> None:
    put_pipeline(pipelines, shop)
    worker = workers.start(pipelines)
    worker.is_in(shop.name, "RUNNING")
    pid = worker.pid_of(shop.name)
    with suspended(psutil.Process(pid).ppid()):
        began = time.monotonic()
        assert worker.stop() == 0, worker.log
        assert time.monotonic() - began < 30  # 5 s on an idle machine
    wait_until(lambda: is_dead(pid), what="the end of the pipeline process")


def test_the_end_of_the_warm_process_loses_nothing(workers: Workers, pipelines: Path, shop: Shop) -> None:
    put_pipeline(pipelines, shop)
    worker = workers.start(pipelines)
    worker.is_in(shop.name, "RUNNING")
    published(shop, shop.insert(ORDER))
    psutil.Process(worker.pid_of(shop.name)).parent().kill()  # type: ignore[union-attr]
    worker.says("process started", shop.name, times=2)
    published(shop, shop.insert(ORDER))


def test_clients_cannot_name_files_of_the_worker(workers: Workers, pipelines: Path, shop: Shop, tmp_path: Path) -> None:
    put_pipeline(pipelines, shop)
    worker = workers.start(pipelines)
    worker.says("listening")
    wait_until(lambda: worker.get("/connectors") == [shop.name], what="the pipeline")
    secret = tmp_path / "secret.json"
    secret.write_text('{"order": "a secret"}')
    calls = (
        {"command": "dlq redrive", "parameters": {"ids": ["0-0"], "payload": str(secret)}},
        {"command": "replay apply", "parameters": {"plan": str(secret)}},
    )
    for call in calls:
        answer = httpx2.post(f"{worker.url}/api/v1/pipelines/{shop.name}/command", json=call, timeout=60)
        assert answer.status_code == 400, answer.text
        assert "never a path" in answer.text


def test_pages_of_other_sites_cannot_use_a_worker(workers: Workers, pipelines: Path, shop: Shop) -> None:
    put_pipeline(pipelines, shop)
    worker = workers.start(pipelines)
    worker.is_in(shop.name, "RUNNING")
    stop = f"{worker.url}/api/v1/pipelines/{shop.name}/stop"
    for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example", "Origin": "http://evil.example"}):
        answer = httpx2.post(stop, headers=headers, timeout=60)
        assert answer.status_code == 403, answer.text
    assert httpx2.get(f"{worker.url}/connectors", headers={"Host": "evil.example"}, timeout=60).status_code == 403
    assert worker.pipeline(shop.name)["target"] == "RUNNING"


def test_a_resume_during_the_stop_is_no_crash(workers: Workers, pipelines: Path, shop: Shop) -> None:
    put_pipeline(pipelines, shop)
    worker = workers.start(pipelines)
    for times in range(1, 4):
        worker.says("process started", shop.name, times=times)
        worker.is_in(shop.name, "RUNNING")
        with suspended(worker.pid_of(shop.name)):  # so that it still runs when it is resumed
            worker.change(shop.name, "pause")
            worker.change(shop.name, "resume")
    worker.says("process started", shop.name, times=4)
    worker.is_in(shop.name, "RUNNING")
    assert worker.events("crashed") == worker.events("restart") == []
    published(shop, shop.insert(ORDER))


def test_a_worker_answers_while_kafka_hangs(workers: Workers, pipelines: Path, shop: Shop) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=200) as silent:
        put_pipeline(pipelines, shop, kafka={"bootstrap": f"127.0.0.1:{silent.getsockname()[1]}"})
        worker = workers.start(pipelines)
        worker.says("listening")
        wait_until(lambda: worker.get("/connectors") == [shop.name], what="the pipeline")
        with ThreadPoolExecutor(40) as many:
            answers = list(many.map(lambda _: httpx2.get(worker.url, timeout=60), range(40)))
        assert {each.json()["kafka_cluster_id"] for each in answers} == {""}
        assert max(each.elapsed.total_seconds() for each in answers) < 30  # 2 s on an idle machine
        (pipelines / "other.yaml").write_text("pipeline: other\n")
        wait_until(lambda: worker.get("/connectors") == sorted([shop.name, "other"]), 60, what="the new file")
        assert worker.stop() == 0
