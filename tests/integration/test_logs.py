"""The log of a real `tailrace run`: for people on a terminal, JSON elsewhere, with levels that change while it runs."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import httpx2

from helpers.shop import Shop
from helpers.worker import Workers, put_pipeline
from tailrace.testkit.stack import wait_until

SECONDS = 120.0
STEERED = """
import json, sys, threading
from pathlib import Path
from tailrace.config.load import load_pipeline
from tailrace.worker import logs
from tailrace.worker.supervisor import Supervisor
from tailrace.worker.wiring import wire

logs.configure(as_json=True, pid=1)
supervisor = Supervisor(wire(load_pipeline(Path(sys.argv[1]))))
thread = threading.Thread(target=supervisor.run)
thread.start()
for line in sys.stdin:
    print(json.dumps(logs.set_level(*line.split())), flush=True)
supervisor.stop()
thread.join()
"""


def command(shop: Shop, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tailrace", "run", str(shop.file), *arguments]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "TAILRACE_LOG"}


def terminal_log(shop: Shop, *arguments: str) -> str:
    """Runs the pipeline with a terminal as stderr until it has logged `running`; returns what the terminal shows."""
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        command(shop, *arguments), stdout=subprocess.DEVNULL, stderr=terminal, env=environment(), close_fds=True
    )
    os.close(terminal)
    shown, stopping = b"", False
    deadline = time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline:
            if not select.select([screen], [], [], 1)[0]:
                continue
            try:
                shown += os.read(screen, 65536)
            except OSError:
                break  # the process has ended, and with it the terminal
            if b"running" in shown and not stopping:
                stopping = True  # a second signal could meet an interpreter that has put back its handlers
                process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, shown
    finally:
        process.kill()
        process.wait()
        os.close(screen)
    return shown.decode().replace("\r\n", "\n")


def piped_log(shop: Shop, *arguments: str, **environ: str) -> str:
    """The same with a pipe as stderr."""
    process = subprocess.Popen(
        command(shop, *arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), **environ},
    )
    assert process.stderr is not None
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "running" in line:
                process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, lines
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    return "".join(lines)


def test_people_on_a_terminal_and_programs_elsewhere(shop: Shop) -> None:
    for shown in (terminal_log(shop), piped_log(shop, "--log-text"), piped_log(shop, TAILRACE_LOG="text")):
        assert re.search(rf"^\d\d:\d\d:\d\d\.\d\d\d info    running  pipeline={shop.name} position=", shown, re.M), (
            shown
        )
    for shown in (piped_log(shop), terminal_log(shop, "--log-json")):
        lines = [json.loads(line) for line in shown.splitlines()]
        (running,) = (line for line in lines if line["event"] == "running")
        assert (running["pipeline"], running["level"]) == (shop.name, "info")
        assert running["logger"] == "tailrace.worker"


def test_a_level_changes_while_a_pipeline_runs(shop: Shop) -> None:
    log = shop.folder / "steered.log"
    with log.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, "-c", STEERED, str(shop.file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None

    def steer(text: str) -> None:
        assert process.stdin is not None
        process.stdin.write(f"{text}\n")
        process.stdin.flush()

    def logged(event: str) -> list[dict[str, object]]:
        return [line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == event]

    try:
        wait_until(lambda: logged("running") or process.poll() is not None, SECONDS, what="a running pipeline")
        writer = shop.writer()
        writer.start(rate=50)
        wait_until(lambda: len(writer.written) > 20, SECONDS, what="some events")
        assert logged("committed") == []
        steer("tailrace.kafka DEBUG")
        assert json.loads(process.stdout.readline()) == ["tailrace.kafka"]
        wait_until(lambda: logged("committed"), SECONDS, what="log lines about batches")
        steer("tailrace INFO")
        process.stdout.readline()
        quiet = len(logged("committed")) + 1  # one may have been on its way
        before = len(writer.written)
        wait_until(lambda: len(writer.written) > before + 50, SECONDS, what="more events")
        writer.stop()
        assert len(logged("committed")) <= quiet
        batch = logged("committed")[0]
        assert (batch["logger"], batch["level"], batch["pid"]) == ("tailrace.kafka", "debug", 1)
        assert shop.topic in str(batch["topics"])
        assert logged("read") == []
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_worker_changes_the_levels_of_its_pipelines(workers: Workers, shop: Shop) -> None:
    """As kcctl and other clients of Kafka Connect do it. Lines of a pipeline process name it."""
    folder = shop.folder / "pipelines"
    put_pipeline(folder, shop)
    worker = workers.start(folder)
    worker.says("running", shop.name)
    writer = shop.writer()
    writer.start(rate=20)
    answer = httpx2.put(f"{worker.url}/admin/loggers/tailrace.source", json={"level": "DEBUG"}, timeout=30)
    assert (answer.status_code, answer.json()) == (200, ["tailrace.source"])
    line = worker.says("read", shop.name)
    assert (line["logger"], line["level"], line["pid"]) == ("tailrace.source", "debug", worker.pid_of(shop.name))
    assert worker.get("/admin/loggers")["tailrace.source"]["level"] == "DEBUG"
    assert worker.get("/admin/loggers/tailrace.kafka")["level"] == "INFO"
    # A process that starts later has the level, too.
    worker.change(shop.name, "restart")
    pid = worker.says("process started", shop.name, times=2)["pid"]
    wait_until(lambda: worker.events("read", shop.name)[-1]["pid"] == pid, SECONDS, what="a line of the new process")
    writer.stop()
    assert worker.events("committed", shop.name) == []
