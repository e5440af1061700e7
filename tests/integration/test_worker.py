"""`tailrace worker`: pipelines of a folder, each in its own process, started, changed, stopped and taken over."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from helpers.shop import Shop, close_shop, open_shop
from helpers.stack import is_dead
from helpers.worker import WorkerProcess, Workers, caught_up, put_pipeline, suspended
from tailrace.testkit.stack import KafkaBroker, PostgresServer, wait_until

ORDER = '{"order": "1", "revision": 1, "amount": 1, "currency": "EUR"}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "pipelines"
    found.mkdir()
    return found


def published(shop: Shop, event: str, timeout: float = 120) -> None:
    """Waits until an event is published, and checks that all are published once."""
    wait_until(lambda: event in {each.id for each in shop.published()}, timeout, what=f"the event {event}")
    ids = [each.id for each in shop.published()]
    assert len(ids) == len(set(ids))


def test_runs_the_pipelines_of_a_folder_and_stops_them_within_5_seconds(
    workers: Workers, folder: Path, shop: Shop
) -> None:
    put_pipeline(folder, shop)
    worker = workers.start(folder)
    worker.says("running", shop.name)
    published(shop, shop.insert(ORDER))
    processes = [each.pid for each in worker.children()]
    assert worker.pid_of(shop.name) in processes
    began = time.monotonic()
    assert worker.stop() == 0, worker.log
    assert time.monotonic() - began < 30  # 5 s on an idle machine
    wait_until(lambda: all(map(is_dead, processes)), what="the end of all its processes")


def test_pause_stop_resume_and_restart(workers: Workers, folder: Path, shop: Shop) -> None:
    put_pipeline(folder, shop)
    worker = workers.start(folder)
    worker.is_in(shop.name, "RUNNING")
    first = worker.pid_of(shop.name)
    for verb, state in (("pause", "PAUSED"), ("stop", "STOPPED")):
        worker.change(shop.name, verb)
        worker.is_in(shop.name, state)
        assert is_dead(first)
    event = shop.insert(ORDER)
    # The target state is stored: another worker does not start the pipeline either.
    assert worker.stop() == 0
    worker = workers.start(folder)
    worker.is_in(shop.name, "STOPPED")
    assert not worker.events("process started")
    worker.change(shop.name, "resume")
    worker.is_in(shop.name, "RUNNING")
    published(shop, event)
    before = worker.pid_of(shop.name)
    worker.change(shop.name, "restart")
    worker.says("process started", shop.name, times=2)
    worker.is_in(shop.name, "RUNNING")
    assert worker.pid_of(shop.name) != before
    published(shop, shop.insert(ORDER))


def test_added_changed_and_removed_files(workers: Workers, folder: Path, shop: Shop) -> None:
    worker = workers.start(folder)
    worker.says("listening")
    file = put_pipeline(folder, shop)
    worker.is_in(shop.name, "RUNNING")
    put_pipeline(folder, shop, limits={"batch_records": 7})
    worker.says("configuration changed", shop.name)
    worker.says("process started", shop.name, times=2)
    worker.is_in(shop.name, "RUNNING")
    published(shop, shop.insert(ORDER))
    pid = worker.pid_of(shop.name)
    file.unlink()
    worker.says("removed", shop.name)
    wait_until(lambda: is_dead(pid), what="the end of its process")
    assert worker.get("/api/v1/pipelines") == {"pipelines": []}


def test_an_invalid_change_keeps_the_process(workers: Workers, folder: Path, shop: Shop) -> None:
    file = put_pipeline(folder, shop)
    valid = file.read_text()
    worker = workers.start(folder)
    worker.is_in(shop.name, "RUNNING")
    pid = worker.pid_of(shop.name)
    put_pipeline(folder, shop, limits={"batch_records": -1})
    refused = worker.says("change refused", shop.name)
    assert "limits.batch_records" in refused["what"]
    assert "remedy" in refused
    file.write_text("pipeline: [")  # not even YAML
    worker.says("change refused", shop.name, times=2)
    published(shop, shop.insert(ORDER))
    assert worker.pid_of(shop.name) == pid
    file.write_text(valid)
    worker.says("configuration is valid again", shop.name)
    assert worker.pid_of(shop.name) == pid


def test_bad_files_do_not_stop_the_others(workers: Workers, folder: Path, shop: Shop) -> None:
    put_pipeline(folder, shop)
    (folder / "broken.yaml").write_text("pipeline: [")
    (folder / "invalid.yaml").write_text("pipeline: invalid\nkafka: {bootstrap: 'localhost:1'}\n")
    (folder / "other.yaml").write_text("something: else\n")
    (folder / "zz.yaml").write_text((folder / f"{shop.name}.yaml").read_text())
    (folder / "gone.yaml").symlink_to(folder / "nothing.yaml")
    worker = workers.start(folder)
    worker.is_in(shop.name, "RUNNING")
    published(shop, shop.insert(ORDER))
    problems = {Path(line["what"].split(":")[0].split(" ")[0]).name: line for line in worker.events("invalid")}
    assert problems.keys() == {"broken.yaml", "invalid.yaml", "zz.yaml", "gone.yaml"}
    assert problems["zz.yaml"]["error"] == "PipelineExists"
    found = worker.pipeline("invalid")
    assert found["state"] == "FAILED"
    assert "source" in json.dumps(found)


def test_a_port_in_use_is_a_named_error(workers: Workers, folder: Path, shop: Shop) -> None:
    put_pipeline(folder, shop)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = workers.start(folder, http=str(port))
        assert worker.ended() == 2
    assert "AddressInUse: another process listens on 127.0.0.1" in worker.log
    assert f"--http {port + 1}" in worker.log
    assert not worker.events("process started")


@pytest.mark.parametrize("arguments", [(), ("missing-folder",)])
def test_nothing_to_run(workers: Workers, arguments: tuple[str, ...]) -> None:
    worker = workers.start(*arguments)
    assert worker.ended() == 2
    assert "ConfigError: " in worker.log
    assert "remedy: Name a folder" in worker.log


def test_a_killed_worker_ends_its_processes_and_the_next_one_resumes(
    workers: Workers, folder: Path, shop: Shop
) -> None:
    put_pipeline(folder, shop)
    worker = workers.start(folder)
    worker.is_in(shop.name, "RUNNING")
    with writing(shop):
        wait_until(lambda: len(shop.published()) > 100, what="published events")
        processes = [each.pid for each in worker.children()]
        worker.kill()
        wait_until(lambda: all(map(is_dead, processes)), what="the end of its processes")
        worker = workers.start(folder)
        worker.is_in(shop.name, "RUNNING")
        count = len(shop.published())
        wait_until(lambda: len(shop.published()) > count + 100, what="more published events")
    verdict = caught_up(shop)
    assert verdict.ok, verdict


def test_the_warm_process_ends_with_the_worker(workers: Workers, folder: Path, shop: Shop) -> None:
    """Its end makes the kernel stop pipeline processes, also one that does not notice that the worker is gone."""
    put_pipeline(folder, shop)
    worker = workers.start(folder)
    worker.is_in(shop.name, "RUNNING")
    pid = worker.pid_of(shop.name)
    others = [each.pid for each in worker.children() if each.pid != pid]
    with suspended(pid):
        worker.kill()
        wait_until(lambda: all(map(is_dead, others)), what="the end of the warm process")
    wait_until(lambda: is_dead(pid), what="the end of the pipeline process")


def test_a_killed_process_is_restarted(workers: Workers, folder: Path, shop: Shop) -> None:
    put_pipeline(folder, shop)
    worker = workers.start(folder)
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


def test_a_second_crash_waits_before_the_restart(workers: Workers, folder: Path, shop: Shop) -> None:
    put_pipeline(folder, shop)
    worker = workers.start(folder)
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


def test_a_suspended_process_is_killed_and_restarted(workers: Workers, folder: Path, shop: Shop) -> None:
    put_pipeline(folder, shop)
    worker = workers.start(folder, "--silent-seconds", 3)
    worker.is_in(shop.name, "RUNNING")
    pid = worker.pid_of(shop.name)
    with suspended(pid):
        worker.says("stuck", shop.name)
        wait_until(lambda: is_dead(pid), what="the end of the suspended process")
    worker.says("process started", shop.name, times=2)
    worker.is_in(shop.name, "RUNNING")
    published(shop, shop.insert(ORDER))


def test_an_error_that_needs_a_person_is_not_restarted(workers: Workers, folder: Path, shop: Shop) -> None:
    put_pipeline(folder, shop)
    worker = workers.start(folder)
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


def test_sigterm_during_the_start(workers: Workers, folder: Path, shop: Shop) -> None:
    put_pipeline(folder, shop)
    for moment in ("listening", "process started", "running"):
        worker = workers.start(folder)
        worker.says(moment)
        assert worker.stop() == 0, (moment, worker.log)
        wait_until(lambda worker=worker: not alive(worker), what="the end of its processes")


def test_two_workers_on_one_folder(workers: Workers, folder: Path, shop: Shop) -> None:
    put_pipeline(folder, shop)
    first = workers.start(folder)
    first.is_in(shop.name, "RUNNING")
    second = workers.start(folder)
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


def test_run_with_an_http_port_exits_with_the_code_of_the_pipeline(workers: Workers, shop: Shop) -> None:
    worker = workers.start(shop.file, command="run")
    worker.is_in(shop.name, "RUNNING")
    published(shop, shop.insert(ORDER))
    assert worker.stop() == 0
    shop.execute("SELECT pg_drop_replication_slot(%s)", shop.slot)
    worker = workers.start(shop.file, command="run")
    assert worker.ended() == 3, worker.log
    assert '"error": "SlotMissing"' in worker.log
    assert '"restart"' not in worker.log


def test_pipelines_do_not_affect_each_other(
    workers: Workers, folder: Path, shop: Shop, postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = open_shop(postgres, kafka, tmp_path / "other")
    try:
        put_pipeline(folder, shop)
        put_pipeline(folder, other)
        worker = workers.start(folder)
        worker.is_in(shop.name, "RUNNING")
        worker.is_in(other.name, "RUNNING")
        with suspended(worker.pid_of(other.name)):
            published(shop, shop.insert(ORDER))
        assert worker.pid_of(shop.name) != worker.pid_of(other.name)
        assert len(worker.events("process started", shop.name)) == 1
        assert worker.stop() == 0
    finally:
        close_shop(other)


@contextmanager
def writing(shop: Shop) -> Iterator[None]:
    """Writes transactions meanwhile."""
    writer = shop.writer()
    writer.start(rate=100)
    try:
        yield
    finally:
        writer.stop()


def alive(worker: WorkerProcess) -> list[psutil.Process]:
    return [each for each in worker.children() if each.status() != psutil.STATUS_ZOMBIE]
