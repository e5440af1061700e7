"""A process under its reaper: nothing is left when either of them ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.testkit.stack import StackError, wait_until
from tailrace.testkit.stack.process import LocalProcess, descendants

SH = "/bin/sh"
ENV = {"PATH": os.defpath}
# A main process with two children in separate sessions, like those of Postgres.
FAMILY = [SH, "-c", "setsid sleep 1000 & setsid sleep 1000 & wait"]

OWNER = """
import json, os, signal, sys, tempfile
from pathlib import Path
from tailrace.testkit.stack.process import LocalProcess
process = LocalProcess("family", Path(tempfile.mkdtemp(dir=sys.argv[1])))
process.launch(json.loads(sys.argv[2]), {"PATH": os.defpath})
if os.fork() == 0:
    # A child inherits every pipe: the death of its parent must still be noticed.
    signal.alarm(60)
    signal.pause()
print(json.dumps([process.pid, str(process.run_dir), process.reaper_pid]), flush=True)
signal.pause()
"""

DETACHER = """
import json, os, sys, tempfile
from pathlib import Path
from tailrace.testkit.stack.process import LocalProcess
process = LocalProcess("family", Path(tempfile.mkdtemp(dir=sys.argv[1])))
process.launch(json.loads(sys.argv[2]), {"PATH": os.defpath})
pid = process.pid
process.detach()
print(json.dumps([pid, str(process.run_dir), process.reaper_pid]))
"""


def state(pid: int) -> str:
    """Returns the kernel's letter for the state of a process; Z when it is dead, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def gone(*pids: int) -> bool:
    return {state(pid) for pid in pids} == {"Z"}


def family(process: LocalProcess) -> list[int]:
    return wait_until(lambda: len(process.pids) >= 3 and process.pids, what="the children")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LocalProcess]:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    made = LocalProcess("family", run_dir)
    yield made
    made.close()
    assert not run_dir.exists()


def test_kill_ends_the_children_too(process: LocalProcess) -> None:
    process.launch(FAMILY, ENV)
    pids = family(process)
    process.kill()
    assert gone(*pids)
    assert process.exit_code == -signal.SIGKILL
    assert not process.running


def test_kill_ends_children_that_are_paused(process: LocalProcess) -> None:
    process.launch(FAMILY, ENV)
    pids = family(process)
    process.pause()
    assert {state(pid) for pid in pids} == {"T"}
    process.kill()
    assert gone(*pids)


def test_resume_lets_a_paused_process_go_on(process: LocalProcess) -> None:
    process.launch([SH, "-c", "trap 'exit 7' USR1; echo ready; while :; do sleep 0.01; done"], ENV)
    wait_until(lambda: process.log.read_text() == "ready\n")
    for _ in range(100):  # a few of them meet the shell in vfork
        process.pause()
        process.resume()
    process.pause()
    os.kill(process.pid, signal.SIGUSR1)
    process.resume()
    assert process.wait(60) == 7


def test_stop_sends_the_stop_signal_and_the_process_can_be_launched_again(process: LocalProcess) -> None:
    for _ in range(2):
        process.launch([SH, "-c", "trap 'echo bye; exit 0' TERM; echo hello; while :; do sleep 0.01; done"], ENV)
        wait_until(lambda: process.log.read_text().endswith("hello\n"), what="the greeting")
        process.stop()
        assert process.exit_code == 0
    assert process.log.read_text() == "hello\nbye\n" * 2
    process.stop()


def test_a_failed_program_is_reported_with_its_output(process: LocalProcess) -> None:
    with pytest.raises(StackError, match="sh failed with exit code 3") as caught:
        process.run_to_end([SH, "-c", "echo no luck >&2; exit 3"], ENV)
    assert "no luck" in caught.value.why


def test_a_missing_program_is_reported(process: LocalProcess) -> None:
    with pytest.raises(StackError) as caught:
        process.run_to_end(["/nowhere/to/be/found"], ENV)
    assert "cannot run /nowhere/to/be/found: No such file" in caught.value.why


def test_launching_a_running_process_is_refused(process: LocalProcess) -> None:
    process.launch(FAMILY, ENV)
    with pytest.raises(StackError, match="already running"):
        process.launch(FAMILY, ENV)


def test_the_pid_of_a_process_that_does_not_run_is_an_error(process: LocalProcess) -> None:
    with pytest.raises(StackError, match="not running"):
        _ = process.pid
    assert process.pids == []


def test_close_ends_the_process_and_its_reaper(process: LocalProcess) -> None:
    process.launch(FAMILY, ENV)
    pids = family(process)
    process.close()
    assert gone(*pids, process.reaper_pid)
    process.close()
    with pytest.raises(StackError, match="closed"):
        process.launch(FAMILY, ENV)


def test_the_server_dies_with_its_reaper(process: LocalProcess) -> None:
    process.launch(["/bin/sleep", "1000"], ENV)
    pid = process.pid
    os.kill(process.reaper_pid, signal.SIGKILL)
    wait_until(lambda: gone(pid), what="the end of the orphan")
    wait_until(lambda: not process.running)


def test_nothing_is_left_when_the_owner_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), json.dumps(FAMILY)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with owner:
        assert owner.stdout is not None
        pid, run_dir, reaper = json.loads(owner.stdout.readline())
        pids = wait_until(lambda: len(descendants(pid)) >= 3 and descendants(pid), what="the children")
        forked = [child for child in descendants(owner.pid) if child not in {owner.pid, reaper, *pids}]
        assert len(forked) == 1
        owner.kill()
        wait_until(lambda: gone(*pids, reaper), what="the end of the family")
        assert not Path(run_dir).exists()
        # The forked child keeps running: it held the pipes the whole time.
        assert state(forked[0]) != "Z"
        os.kill(forked[0], signal.SIGKILL)


def test_a_detached_server_outlives_the_owner_and_ends_on_request(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DETACHER, str(tmp_path), json.dumps(FAMILY)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=30,
    )
    pid, run_dir, reaper = json.loads(done.stdout)
    try:
        pids = wait_until(lambda: len(descendants(pid)) >= 3 and descendants(pid), what="the children")
        assert Path(run_dir).exists()
    finally:
        os.kill(reaper, signal.SIGTERM)
    wait_until(lambda: gone(*pids) and not Path(run_dir).exists(), what="the end of the family")
