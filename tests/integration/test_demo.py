"""`tailrace demo`, as a user runs it: it proves what it says, notices when that is not so, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
from confluent_kafka import Message

from tailrace import cli
from tailrace.demo import play
from tailrace.proof.reader import read_all
from tailrace.stack import KafkaBroker, PostgresServer, kafka, postgres, wait_until
from tailrace.stack.process import descendants

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Runs the demo on servers of its own, its files in the test's folder; kills what a failed test left."""
    started: list[subprocess.Popen[str]] = []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}

    def run(*arguments: str, stdout: int | IO[str] = subprocess.PIPE) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace", "demo", *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "TMPDIR": str(shared_tmp(tmp_path))},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def shared_tmp(tmp_path: Path) -> Path:
    """A place for run directories that the user of Postgres may enter, too."""
    folder = Path("/tmp") / f"tailrace-test-{tmp_path.parent.name}-{tmp_path.name}"  # noqa: S108
    folder.mkdir(exist_ok=True)
    folder.chmod(0o711)
    return folder


def test_exactly_once_though_killed_twice(start: Start) -> None:
    process = start("--json", "--seconds", "4", "--seed", "11")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    told: dict[str, Any] = json.loads(out)
    assert out == json.dumps(told) + "\n"
    assert told["ok"] is True
    assert told["kills"] == 2
    assert min(told["committed"], told["rolled_back"], told["dead_lettered"]) > 0
    assert told["committed"] == told["published"] + told["dead_lettered"]
    assert told["missing"] == told["duplicated"] == told["phantom"] == told["out_of_order"] == 0
    latency = told["latency"]
    assert latency["steady_events"] + latency["restart_events"] == told["committed"]
    assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["longest_ms"]
    assert err.count("connector killed (SIGKILL)") == err.count("connector restarted") == 2
