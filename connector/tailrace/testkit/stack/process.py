"""`LocalProcess`: one server process under a reaper, which can be launched, stopped, killed and paused.

It sends commands to `reaper.py` and reads its replies. The server can be launched again after `kill` or `stop`, in the
same run directory and under the same reaper. `kill` and `stop` return when the server and all its children are gone.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tailrace.testkit.stack.paths import User
from tailrace.testkit.stack.waiting import StackError, tail, wait_until

ANSWER_TIMEOUT = 20.0  # the reaper answers in milliseconds on an idle machine
REAPER = Path(__file__).with_name("reaper.py")


class LocalProcess:
    """A server process in `run_dir`, launched by `launch`."""

    def __init__(
        self,
        name: str,
        run_dir: Path,
        *,
        user: User | None = None,
        stop_signal: int = signal.SIGTERM,
        quit_signal: int = signal.SIGKILL,
    ) -> None:
        self.name = name
        self.run_dir = run_dir
        self.log = run_dir / f"{name}.log"
        self.exit_code: int | None = None
        self._user = user
        self._signals = {"stop_signal": int(stop_signal), "quit_signal": int(quit_signal)}
        self._pid = 0
        self._lock = threading.RLock()
        self._received = b""
        self._detached = False
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(REAPER), str(os.getpid()), str(run_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )

    @property
    def reaper_pid(self) -> int:
        return self._reaper.pid

    @property
    def running(self) -> bool:
        """Whether the process exists, also if it is paused or does not answer."""
        with self._lock:
            self._receive(0)
            return self._pid != 0

    @property
    def pid(self) -> int:
        """The server's main process."""
        if not self.running:
            raise StackError(f"{self.name} is not running", remedy="call start() first")
        return self._pid

    @property
    def pids(self) -> list[int]:
        """The main process and all its descendants."""
        return descendants(self.pid) if self.running else []

    def launch(self, argv: Sequence[str | Path], env: Mapping[str, str]) -> None:
        """Starts the program; returns when the process exists."""
        with self._lock:
            if self.running:
                raise StackError(f"{self.name} is already running", remedy="stop() or kill() it first")
            command = {
                "op": "run",
                "argv": [str(part) for part in argv],
                "env": dict(env),
                "cwd": str(self.run_dir),
                "log": str(self.log),
                "uid": self._user.uid if self._user else None,
                "gid": self._user.gid if self._user else None,
                **self._signals,
            }
            self.exit_code = None
            self._send(command)
            # The end of a program that ends at once may be reported together with its pid.
            wait_until(
                lambda: self._receive(0.2) and (self._pid or self.exit_code is not None),
                ANSWER_TIMEOUT,
                what=f"the start of {self.name}",
            )

    def run_to_end(self, argv: Sequence[str | Path], env: Mapping[str, str], timeout: float = 60.0) -> None:
        """Runs a program that ends by itself, such as initdb, under the reaper."""
        self.launch(argv, env)
        if self.wait(timeout) != 0:
            raise self.failure(f"{Path(argv[0]).name} failed with exit code {self.exit_code}")

    def wait(self, timeout: float) -> int:
        """Waits until the process and its descendants have ended; returns its exit code, negative for a signal."""
        deadline = time.monotonic() + timeout
        with self._lock:
            while self._pid:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self.failure(f"{self.name} did not end within {timeout:g} s")
                self._receive(left)
        return self.exit_code if self.exit_code is not None else 0

    def kill(self) -> None:
        """Sends SIGKILL to the main process, as the kernel's out-of-memory killer does."""
        self._signal(signal.SIGKILL, self.pid)
        self.wait(ANSWER_TIMEOUT)

    def stop(self, timeout: float = 30.0) -> None:
        """Shuts it down in order; does nothing if it is down already."""
        if self.running:
            self.resume()
            self._signal(self._signals["stop_signal"], self._pid)
            self.wait(timeout)

    def pause(self) -> None:
        """Sends SIGSTOP to the whole process tree: connections stay open, nothing answers."""
        stopped: set[int] = set()
        # The main process comes first and then forks no more. The next round finds what it forked just before.
        while new := [pid for pid in self.pids if pid not in stopped]:
            for pid in new:
                self._signal(signal.SIGSTOP, pid)
            stopped.update(new)
        # The kernel stops a process when it schedules it next: until then it may still answer.
        wait_until(lambda: all(_is_stopped(pid) for pid in stopped), ANSWER_TIMEOUT, what=f"the pause of {self.name}")

    def resume(self) -> None:
        """Sends SIGCONT to the whole process tree; harmless if nothing is paused."""
        for pid in self.pids:
            self._signal(signal.SIGCONT, pid)

    def close(self) -> None:
        """Ends the server if it runs, and removes the run directory. May be called again."""
        with self._lock:
            if self._reaper.stdin is None or self._reaper.stdin.closed:
                return
            try:
                self._send({"op": "close"})
            except StackError:
                pass  # the reaper is gone, and its server died with it
            self._reaper.stdin.close()
            self._reaper.wait(ANSWER_TIMEOUT)
            if self._reaper.stdout is not None:
                self._reaper.stdout.close()
            self._pid = 0
        # The reaper does this itself, unless it was killed.
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def detach(self) -> None:
        """Lets the server run on when we end, until its reaper gets SIGTERM."""
        with self._lock:
            self._send({"op": "detach"})
            wait_until(
                lambda: self._receive(0.2) and self._detached,
                ANSWER_TIMEOUT,
                what=f"the detaching of {self.name}",
            )
        for pipe in (self._reaper.stdin, self._reaper.stdout):
            if pipe is not None:
                pipe.close()
        # It outlives us on purpose; Popen's destructor would warn.
        self._reaper.returncode = 0

    def failure(self, what: str, remedy: str = "") -> StackError:
        """Returns an error with the end of the server's log."""
        return StackError(what, why=f"the end of its log:\n{tail(self.log)}", remedy=remedy)

    def _send(self, command: Mapping[str, object]) -> None:
        pipe = self._reaper.stdin
        if pipe is None or pipe.closed:
            raise StackError(f"{self.name} is closed", remedy="create a new server")
        try:
            pipe.write(json.dumps(command).encode() + b"\n")
        except OSError as exc:
            raise StackError(f"the reaper of {self.name} is gone ({exc.strerror})") from exc

    def _receive(self, timeout: float) -> bool:
        """Handles what the reaper reports within `timeout`; returns whether it reported anything."""
        pipe = self._reaper.stdout
        if pipe is None or pipe.closed or not select.select([pipe], [], [], timeout)[0]:
            return False
        data = os.read(pipe.fileno(), 65536)
        if not data and self._pid:
            # The reaper was killed; PDEATHSIG ends the server with it.
            self._pid, self.exit_code = 0, -int(signal.SIGKILL)
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "pid" in message:
                self._pid = message["pid"]
            elif "detached" in message:
                self._detached = True
            else:
                self._pid, self.exit_code = 0, message["exit"]
        return True

    def _signal(self, number: int, pid: int) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it has ended by itself; the reaper reports it


def descendants(root: int) -> list[int]:
    """Returns `root` and all its descendants, parents before children."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue  # it has just ended
            below.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(below.get(pid, []))
    return found


def _is_stopped(pid: int) -> bool:
    """Returns whether the process is stopped or gone, or will be when its system call returns.

    The latter is state D. A shell that has just called vfork stays in it until its child, which is stopped, runs on.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "TtDZX"
    except OSError:
        return True
