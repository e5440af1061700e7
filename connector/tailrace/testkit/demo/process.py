"""A process in the play: started, killed, started again, and held to it while it should be running."""

from __future__ import annotations

import time

from tailrace.testkit.demo.command import TailraceProcess
from tailrace.testkit.demo.latency import Downtime
from tailrace.testkit.stack import StackError

COMING = ("starting", "restarting")


class DemoProcess:
    """`state` is one of: absent, starting, running, restarting, stopped."""

    def __init__(self, name: str, process: TailraceProcess, task: str) -> None:
        """`name` and `task` are what the show tells of it."""
        self.name = name
        self.process = process
        self.task = task
        self.state = "absent"
        self.outages: list[Downtime] = []
        self._killed_ms = 0.0

    def start(self) -> None:
        self.process.start()
        self.state = "restarting" if self._killed_ms else "starting"

    def kill(self) -> int:
        """The pid that was."""
        pid = self.process.pid
        self._killed_ms = time.time() * 1000
        self.process.kill()
        self.state = "restarting"
        return pid

    def stop(self) -> None:
        self.state = "stopped"
        self.process.stop()

    def came_up(self) -> bool:
        """Whether it works from this moment on; said once after each start, and then it is held to it."""
        if self.state not in COMING or not self.process.ready:
            return False
        if self.state == "restarting":
            self.outages.append(Downtime(self._killed_ms, time.time() * 1000))
        self.state = "running"
        return True

    def is_running(self) -> bool:
        return self.state == "running"

    def require_health(self) -> None:
        """Raises what went wrong in a process that should be running."""
        if self.state == "running" and not self.process.ready:
            raise self.failure(f"{self.name} is not running")

    def failure(self, what: str) -> StackError:
        """An error with its last words."""
        return self.process.failure(what)
