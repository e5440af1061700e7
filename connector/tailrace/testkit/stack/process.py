"""One server process on this machine, under a guardian: launch it, end it gently or not, pause it.

`LocalProcess` is our end of the conversation with `guardian.py`. The same object can launch the server again
after `kill` or `stop`: same run directory, same guardian. `kill` and `stop` return when the server and all of
its children are gone, not when the signal is sent.
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

from tailrace.testkit.stack.errors import StackError, tail
from tailrace.testkit.stack.paths import User
from tailrace.testkit.stack.waiting import wait_until

ANSWER_TIMEOUT = 20.0  # the guardian answers in milliseconds; this only ends a wait on a machine that is stuck
REAPER = Path(__file__).with_name("reaper.py")


class LocalProcess:
    """A server that runs, or could run, in `run_dir`; not yet launched."""

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
        self._heard = b""
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
        """Whether the server process is there (paused counts); says nothing of whether it answers."""
        with self._lock:
            self._hears(0)
            return self._pid != 0

    @property
    def pid(self) -> int:
        """The server's main process."""
        if not self.running:
            raise StackError(f"{self.name} is not running", remedy="call start() first")
        return self._pid

    @property
    def pids(self) -> list[int]:
        """The main process and all that descends from it."""
        return descendants(self.pid) if self.running else []

    def launch(self, argv: Sequence[str | Path], env: Mapping[str, str]) -> None:
        """Start the program; returns when the process exists."""
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
            self._tell(command)
            # A program that ends at once has its end reported behind its pid, perhaps in the same breath.
            wait_until(
                lambda: self._hears(0.2) and (self._pid or self.exit_code is not None),
                ANSWER_TIMEOUT,
                what=f"the start of {self.name}",
            )

    def run_to_end(self, argv: Sequence[str | Path], env: Mapping[str, str], timeout: float = 60.0) -> None:
        """Run a program that ends by itself (initdb and the like), under the same protection."""
        self.launch(argv, env)
        if self.wait(timeout) != 0:
            raise self.failure(f"{Path(argv[0]).name} failed with exit code {self.exit_code}")

    def wait(self, timeout: float) -> int:
        """Wait for the end of the process and everything below it; its exit code, negative for a signal."""
        deadline = time.monotonic() + timeout
        with self._lock:
            while self._pid:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self.failure(f"{self.name} did not end within {timeout:g} s")
                self._hears(left)
        return self.exit_code if self.exit_code is not None else 0

    def kill(self) -> None:
        """SIGKILL to the main process, as the kernel's out-of-memory killer would."""
        self._signal(signal.SIGKILL, self.pid)
        self.wait(ANSWER_TIMEOUT)

    def stop(self, timeout: float = 30.0) -> None:
        """An orderly shutdown; nothing happens to a server that is down already."""
        if self.running:
            self.resume()
            self._signal(self._signals["stop_signal"], self._pid)
            self.wait(timeout)

    def pause(self) -> None:
        """SIGSTOP to the whole tree: connections stay open, nothing answers."""
        stopped: set[int] = set()
        # The main process comes first and forks no more; what it forked just before shows in the next look.
        while fresh := [pid for pid in self.pids if pid not in stopped]:
            for pid in fresh:
                self._signal(signal.SIGSTOP, pid)
            stopped.update(fresh)
        # The kernel stops a process when it next looks at it: until then it may still answer.
        wait_until(lambda: all(_is_still(pid) for pid in stopped), ANSWER_TIMEOUT, what=f"{self.name} to stand still")

    def resume(self) -> None:
        """SIGCONT to the whole tree; harmless when nothing is paused."""
        for pid in self.pids:
            self._signal(signal.SIGCONT, pid)

    def close(self) -> None:
        """End the server if it runs, and remove the run directory. May be called again."""
        with self._lock:
            if self._reaper.stdin is None or self._reaper.stdin.closed:
                return
            try:
                self._tell({"op": "close"})
            except StackError:
                pass  # the guardian is gone; its server died with it
            self._reaper.stdin.close()
            self._reaper.wait(ANSWER_TIMEOUT)
            if self._reaper.stdout is not None:
                self._reaper.stdout.close()
            self._pid = 0
        # The guardian does this itself, unless somebody killed it.
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def detach(self) -> None:
        """Leave the server to its guardian: it lives on when we end, until the guardian gets SIGTERM."""
        with self._lock:
            self._tell({"op": "detach"})
            wait_until(
                lambda: self._hears(0.2) and self._detached,
                ANSWER_TIMEOUT,
                what=f"the detaching of {self.name}",
            )
        for pipe in (self._reaper.stdin, self._reaper.stdout):
            if pipe is not None:
                pipe.close()
        # It is meant to outlive us: not a forgotten child, whatever the destructor of Popen would think.
        self._reaper.returncode = 0

    def failure(self, what: str, remedy: str = "") -> StackError:
        """An error with the server's last words."""
        return StackError(what, why=f"the end of its log:\n{tail(self.log)}", remedy=remedy)

    def _tell(self, command: Mapping[str, object]) -> None:
        pipe = self._reaper.stdin
        if pipe is None or pipe.closed:
            raise StackError(f"{self.name} is closed", remedy="make a new server")
        try:
            pipe.write(json.dumps(command).encode() + b"\n")
        except OSError as exc:
            raise StackError(f"the guardian of {self.name} is gone ({exc.strerror})") from exc

    def _hears(self, timeout: float) -> bool:
        """Take in what the guardian reports within `timeout`; whether it said anything."""
        pipe = self._reaper.stdout
        if pipe is None or pipe.closed or not select.select([pipe], [], [], timeout)[0]:
            return False
        data = os.read(pipe.fileno(), 65536)
        if not data and self._pid:
            # The guardian was killed; PDEATHSIG takes the server with it.
            self._pid, self.exit_code = 0, -int(signal.SIGKILL)
        *lines, self._heard = (self._heard + data).split(b"\n")
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
            pass  # it ended by itself meanwhile; the guardian reports it


def descendants(root: int) -> list[int]:
    """`root` and every process below it, parents before children."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue  # it ended while we looked
            below.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(below.get(pid, []))
    return found


def _is_still(pid: int) -> bool:
    """Whether it is stopped, or no longer there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "TtZX"
    except OSError:
        return True
