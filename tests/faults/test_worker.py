"""A worker whose processes are killed, suspended or fail, and two workers with the same pipelines."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from helpers.shop import Shop, close_shop, open_shop
from helpers.stack import is_dead
from helpers.worker import ORDER, Workers, caught_up, published, put_pipeline, suspended, writing
from tailrace.testkit.stack import KafkaBroker, PostgresServer, wait_until


@pytest.mark.slow
def test_a_killed_worker_ends_its_processes_and_the_next_one_resumes(
    workers: Workers, pipelines: Path, shop: Shop
) -> None:
    put_pipeline(pipelines, shop)
    worker = workers.start(pipelines)
    worker.is_in(shop.name, "RUNNING")
    with writing(shop):
        wait_until(lambda: len(shop.published()) > 100, what="published events")
        processes = [each.pid for each in worker.children()]
        worker.kill()
        wait_until(lambda: all(map(is_dead, processes)), what="the end of its processes")
        worker = workers.start(pipelines)
        worker.is_in(shop.name, "RUNNING")
        count = len(shop.published())
        wait_until(lambda: len(shop.published()) > count + 100, what="more published events")
    verdict = caught_up(shop)
    assert verdict.ok, verdict


@pytest.mark.slow
def test_the_warm_process_ends_with_the_worker(workers: Workers, pipelines: Path, shop: Shop) -> None:
    """Its end makes the kernel stop pipeline processes, also one that does not notice that the worker is gone."""
    put_pipeline(pipelines, shop)
    worker = workers.start(pipelines)
    worker.is_in(shop.name, "RUNNING")
    pid = worker.pid_of(shop.name)
    others = [each.pid for each in worker.children() if each.pid != pid]
    with suspended(pid):
        worker.kill()
        wait_until(lambda: all(map(is_dead, others)), what="the end of the warm process")
    wait_until(lambda: is_dead(pid), what="the end of the pipeline process")


@pytest.mark.slow
def test_a_killed_warm_process_is_replaced(workers: Workers, pipelines: Path, shop: Shop) -> None:
    put_pipeline(pipelines, shop)
    worker = workers.start(pipelines)
    worker.is_in(shop.name, "RUNNING")
    with writing(shop):
        wait_until(lambda: len(shop.published()) > 50, what="published events")
        pid = worker.pid_of(shop.name)
        os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
        wait_until(lambda: is_dead(pid), what="the end of the pipeline process")
        worker.says("process started", shop.name, times=2)
        worker.is_in(shop.name, "RUNNING")
    verdict = caught_up(shop)
    assert verdict.ok, verdict


def test_a_killed_process_is_restarted(workers: Workers, pipelines: Path, shop: Shop) -> None:
    put_pipeline(pipelines, shop)
    worker = workers.start(pipelines)
    worker.is_in(shop.name, "RUNNING")
    with writing(shop):
        wait_until(lambda: len(shop.published()) > 100, what="published events")
        os.kill(worker.pid_of(shop.name), signal.SIGKILL)
        crashed = worker.says("crashed", shop.name)
        assert "SIGKILL" in crashed["what"]
        worker.says("process started", shop.name, times=2)
        worker.is_in(shop.name, "RUNNING")
    assert worker.pipeline(shop.name)["restarts"] == 1
    verdict = caught_up(shop)
    assert verdict.ok, verdict


def test_a_second_crash_waits_before_the_restart(workers: Workers, pipelines: Path, shop: Shop) -> None:
    put_pipeline(pipelines, shop)
    worker = workers.start(pipelines)
    for times in (1, 2):
        worker.says("process started", shop.name, times=times)
        worker.is_in(shop.name, "RUNNING")
        os.kill(worker.pid_of(shop.name), signal.SIGKILL)
        worker.says("crashed", shop.name, times=times)
    waiting = worker.says("restart", shop.name, times=2)
    assert waiting["seconds"] == 120
    worker.is_in(shop.name, "FAILED")
    worker.change(shop.name, "restart")
    worker.is_in(shop.name, "RUNNING")


def test_a_suspended_process_is_killed_and_restarted(workers: Workers, pipelines: Path, shop: Shop) -> None:
    put_pipeline(pipelines, shop)
    worker = workers.start(pipelines, "--silent-seconds", 3)
    worker.is_in(shop.name, "RUNNING")
    pid = worker.pid_of(shop.name)
    with suspended(pid):
        worker.says("stuck", shop.name)
        wait_until(lambda: is_dead(pid), what="the end of the suspended process")
    worker.says("process started", shop.name, times=2)
    worker.is_in(shop.name, "RUNNING")
    published(shop, shop.insert(ORDER))


def test_a_suspended_worker_does_not_blame_its_processes(workers: Workers, pipelines: Path, shop: Shop) -> None:
    put_pipeline(pipelines, shop)
    worker = workers.start(pipelines, "--silent-seconds", 2)
    worker.is_in(shop.name, "RUNNING")
    until = time.monotonic() + 5
    with suspended(worker.process.pid):
        published(shop, shop.insert(ORDER))
        wait_until(lambda: time.monotonic() > until, what="a silence that is too long")
    # It has read the reports, and looked at the time, when it answers again and the next reports have come.
    before = worker.pipeline(shop.name)["reported_ms"]
    wait_until(lambda: worker.pipeline(shop.name)["reported_ms"] > before + 3000, what="more reports")
    assert not worker.events("stuck")
    assert len(worker.events("process started")) == 1


def test_an_error_that_needs_a_person_is_not_restarted(workers: Workers, pipelines: Path, shop: Shop) -> None:
    put_pipeline(pipelines, shop)
    worker = workers.start(pipelines)
    worker.is_in(shop.name, "RUNNING")
    published(shop, shop.insert(ORDER))
    worker.change(shop.name, "stop")
    worker.is_in(shop.name, "STOPPED")
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    worker.change(shop.name, "resume")
    worker.is_in(shop.name, "FAILED")
    found = worker.pipeline(shop.name)
    assert found["error"]["code"] == "SlotMissing", found
    assert found["error"]["remedy"]
    assert not worker.events("restart", shop.name)


def test_a_failure_ends_when_its_cause_is_fixed_elsewhere(
    workers: Workers, pipelines: Path, shop: Shop, make_topic: Callable[..., None]
) -> None:
    put_pipeline(pipelines, shop, topics={"create": False})
    worker = workers.start(pipelines, "--restart-minutes", 0.05)
    failed = worker.says("failed", shop.name)
    assert failed["error"] == "TopicMissing", failed
    assert worker.says("restart", shop.name, times=2)["seconds"] == 6
    for topic in (shop.topic, shop.letters, f"{shop.letters}.resolutions"):
        make_topic(topic, 3 if topic == shop.topic else 1)
    worker.is_in(shop.name, "RUNNING")
    published(shop, shop.insert(ORDER))


def test_a_pipeline_waits_for_its_kafka(workers: Workers, pipelines: Path, shop: Shop) -> None:
    """Whether it is paused is not known without Kafka, so it does not start."""
    put_pipeline(pipelines, shop, kafka={"bootstrap": "127.0.0.1:1"})
    worker = workers.start(pipelines)
    worker.is_in(shop.name, "RETRYING")
    assert worker.pipeline(shop.name)["error"]["code"] == "KafkaUnavailable"
    assert not worker.events("process started")
    began = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began < 30  # 5 s on an idle machine


@pytest.mark.slow
def test_two_workers_on_one_folder(workers: Workers, pipelines: Path, shop: Shop) -> None:
    put_pipeline(pipelines, shop)
    first = workers.start(pipelines)
    first.is_in(shop.name, "RUNNING")
    second = workers.start(pipelines)
    second.is_in(shop.name, "WAITING")
    # What one worker is asked for counts for both: the second does not take over a paused pipeline.
    first.change(shop.name, "pause")
    first.is_in(shop.name, "PAUSED")
    second.is_in(shop.name, "PAUSED")
    assert not second.events("running", shop.name)
    second.change(shop.name, "resume")
    wait_until(
        lambda: {each.pipeline(shop.name)["state"] for each in (first, second)} == {"RUNNING", "WAITING"},
        120,
        what="one that runs and one that waits",
    )
    running, waiting = (first, second) if first.pipeline(shop.name)["state"] == "RUNNING" else (second, first)
    with writing(shop):
        wait_until(lambda: len(shop.published()) > 50, what="published events")
        assert running.stop() == 0
        waiting.is_in(shop.name, "RUNNING")
    verdict = caught_up(shop)
    assert verdict.ok, verdict


def test_pipelines_do_not_affect_each_other(
    workers: Workers, pipelines: Path, shop: Shop, postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = open_shop(postgres, kafka, tmp_path / "other")
    try:
        put_pipeline(pipelines, shop)
        put_pipeline(pipelines, other)
        worker = workers.start(pipelines)
        worker.is_in(shop.name, "RUNNING")
        worker.is_in(other.name, "RUNNING")
        with suspended(worker.pid_of(other.name)):
            published(shop, shop.insert(ORDER))
        assert worker.pid_of(shop.name) != worker.pid_of(other.name)
        assert len(worker.events("process started", shop.name)) == 1
        assert worker.stop() == 0
    finally:
        close_shop(other)
