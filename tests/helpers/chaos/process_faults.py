"""Faults of processes: killed, suspended, stopped, or started twice."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from helpers.chaos.schedule import PlannedFault
from helpers.chaos.world import START_SECONDS, Pipeline, World
from tailrace.testkit.stack import wait_until

STOP_SECONDS = 120
"""SIGTERM ends a connector within 5 s and a projection within 10 s on an idle machine."""


def kill(world: World, fault: PlannedFault) -> str:
    """Kills a process with SIGKILL, and starts it again."""
    target = world.targets[fault.target]
    target.require_running()
    running = target.current
    running.kill()
    assert running.process.returncode == -signal.SIGKILL, f"ended with {running.process.returncode}"
    target.start()
    target.await_ready()
    return ""


def suspend(world: World, fault: PlannedFault) -> str:
    """Suspends a process, as a paused virtual machine does."""
    target = world.targets[fault.target]
    target.require_running()
    pid = target.current.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: _state(pid) == "T", what="the suspension")
        time.sleep(fault.hold)
        assert _state(pid) == "T", "it was not suspended all the time"
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: _state(pid) != "T", what="the end of the suspension")
    return ""


def stop(world: World, fault: PlannedFault) -> str:
    """Stops a process with SIGTERM, and starts it again."""
    target = world.targets[fault.target]
    target.require_running()
    code = target.current.stop(STOP_SECONDS)
    assert code == 0, f"exit code {code} after SIGTERM:\n{target.current.log[-3000:]}"
    target.start()
    target.await_ready()
    return ""


def second_instance(world: World, fault: PlannedFault) -> str:
    """Starts a second instance, and then kills or stops one of the two."""
    target = world.targets[fault.target]
    target.await_ready()
    first, second = target.current, target.launch()
    started = ('"PipelineBusy"', '"running"') if isinstance(target, Pipeline) else ('"reading"',)

    def seen() -> bool:
        assert second.running, f"the second instance ended with {second.process.returncode}:\n{second.log[-3000:]}"
        return any(text in second.log for text in started)

    try:
        wait_until(seen, START_SECONDS, what=f"the start of a second instance of {target.name}")
        time.sleep(fault.hold)
        ended, left = (first, second) if fault.choice < 0.6 else (second, first)
        if fault.choice < 0.3:
            ended.kill()
        elif ended.running:
            ended.stop(STOP_SECONDS)
        assert not ended.running
        target.process = left
    except BaseException:
        second.kill()
        raise
    # If the first was delayed for long enough, the second has taken over and the first has ended, fenced.
    if not target.current.running and '"Fenced"' in target.current.log:
        target.start()
    target.await_ready()
    return "first ended" if ended is first else "second ended"


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
