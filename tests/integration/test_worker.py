"""`tailrace worker`: the pipelines of a folder, each in its own process, started, changed and stopped."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import psutil
import pytest

from helpers.shop import Shop
from helpers.stack import is_dead
from helpers.worker import ORDER, WorkerProcess, Workers, published, put_pipeline
from tailrace.testkit.stack import wait_until


def test_runs_the_pipelines_of_a_folder_and_stops_them_within_5_seconds(
    workers: Workers, pipelines: Path, shop: Shop
) -> None:
    put_pipeline(pipelines, shop)
    worker = workers.start(pipelines)
    worker.says("running", shop.name)
    published(shop, shop.insert(ORDER))
    processes = [each.pid for each in worker.children()]
    assert worker.pid_of(shop.name) in processes
    began = time.monotonic()
    assert worker.stop() == 0, worker.log
    assert time.monotonic() - began < 30  # 5 s on an idle machine
    wait_until(lambda: all(map(is_dead, processes)), what="the end of all its processes")


def test_pause_stop_resume_and_restart(workers: Workers, pipelines: Path, shop: Shop) -> None:
    put_pipeline(pipelines, shop)
    worker = workers.start(pipelines)
    worker.is_in(shop.name, "RUNNING")
    first = worker.pid_of(shop.name)
    for verb, state in (("pause", "PAUSED"), ("stop", "STOPPED")):
        worker.change(shop.name, verb)
        worker.is_in(shop.name, state)
        assert is_dead(first)
    event = shop.insert(ORDER)
    # The target state is stored: another worker does not start the pipeline either.
    assert worker.stop() == 0
    worker = workers.start(pipelines)
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


def test_added_changed_and_removed_files(workers: Workers, pipelines: Path, shop: Shop) -> None:
    worker = workers.start(pipelines)
    worker.says("listening")
    file = put_pipeline(pipelines, shop)
    worker.is_in(shop.name, "RUNNING")
    put_pipeline(pipelines, shop, limits={"batch_records": 7})
    worker.says("configuration changed", shop.name)
    worker.says("process started", shop.name, times=2)
    worker.is_in(shop.name, "RUNNING")
    published(shop, shop.insert(ORDER))
    pid = worker.pid_of(shop.name)
    file.unlink()
    worker.says("removed", shop.name)
    wait_until(lambda: is_dead(pid), what="the end of its process")
    assert worker.get("/api/v1/pipelines")["pipelines"] == []


def test_an_invalid_change_keeps_the_process(workers: Workers, pipelines: Path, shop: Shop) -> None:
    file = put_pipeline(pipelines, shop)
    valid = file.read_text()
    worker = workers.start(pipelines)
    worker.is_in(shop.name, "RUNNING")
    pid = worker.pid_of(shop.name)
    put_pipeline(pipelines, shop, limits={"batch_records": -1})
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


def test_bad_files_do_not_stop_the_others(workers: Workers, pipelines: Path, shop: Shop) -> None:
    put_pipeline(pipelines, shop)
    (pipelines / "broken.yaml").write_text("pipeline: [")
    (pipelines / "invalid.yaml").write_text("pipeline: invalid\nkafka: {bootstrap: 'localhost:1'}\n")
    (pipelines / "other.yaml").write_text("something: else\n")
    (pipelines / "zz.yaml").write_text((pipelines / f"{shop.name}.yaml").read_text())
    (pipelines / "gone.yaml").symlink_to(pipelines / "nothing.yaml")
    worker = workers.start(pipelines)
    worker.is_in(shop.name, "RUNNING")
    published(shop, shop.insert(ORDER))
    problems = {Path(line["what"].split(":")[0].split(" ")[0]).name: line for line in worker.events("invalid")}
    assert problems.keys() == {"broken.yaml", "invalid.yaml", "zz.yaml", "gone.yaml"}
    assert problems["zz.yaml"]["error"] == "PipelineExists"
    found = worker.pipeline("invalid")
    assert found["state"] == "FAILED"
    assert "source" in json.dumps(found)


def test_a_port_in_use_is_a_named_error(workers: Workers, pipelines: Path, shop: Shop) -> None:
    put_pipeline(pipelines, shop)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = workers.start(pipelines, http=str(port))
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


def test_sigterm_during_the_start(workers: Workers, pipelines: Path, shop: Shop) -> None:
    put_pipeline(pipelines, shop)
    for moment in ("listening", "process started", "running"):
        worker = workers.start(pipelines)
        worker.says(moment)
        assert worker.stop() == 0, (moment, worker.log)
        wait_until(lambda worker=worker: not alive(worker), what="the end of its processes")


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


def alive(worker: WorkerProcess) -> list[psutil.Process]:
    return [each for each in worker.children() if each.status() != psutil.STATUS_ZOMBIE]
