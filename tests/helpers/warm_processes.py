"""Python processes that start quickly, because they are forked from a process that has already imported everything.

Starting Python and importing the connector takes more processor time than most tests use, and tests start thousands of
processes. A forked process is a process like any other: it has its own memory, environment, folder and output, can be
stopped and killed, and ends as an interpreter ends. `Process` is used like `subprocess.Popen`.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

CONNECTOR = ("tailrace.cli.run", "tailrace.sources.mongo.source")
PROJECTION = ("tailrace.cli.project.command", "tailrace.projections")
TAILRACE = ("-m", "tailrace")
LARGEST = 1 << 20
"""The maximum size of a request in bytes; most of it is the environment."""


class ForkServer:
    """A process that has imported `modules` and forks others on request."""

    def __init__(self, modules: Sequence[str]) -> None:
        # Each message is one packet.
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turn = threading.Lock()
        self.ended: dict[int, int] = {}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def close(self) -> None:
        """Ends it by closing its socket; the processes it forked keep running."""
        self._socket.close()
        self._process.wait()

    def fork(self, request: Mapping[str, Any]) -> int:
        with self._turn:
            self._socket.sendall(json.dumps(request).encode())
            while not (pid := self._receive().get("began", 0)):
                pass
            return pid

    def look(self, seconds: float) -> None:
        """Reads which processes have ended; waits up to `timeout` for the first."""
        with self._turn:
            while select.select([self._socket], [], [], seconds)[0]:
                self._receive()
                seconds = 0

    def _receive(self) -> dict[str, int]:
        message: dict[str, int] = json.loads(self._socket.recv(LARGEST))
        if "ended" in message:
            self.ended[message["ended"]] = message["code"]
        return message


@functools.cache
def fork_server(modules: tuple[str, ...]) -> ForkServer:
    return ForkServer(modules)


class Process:
    """The part of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        output: Path,
        errors: Path | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        modules: tuple[str, ...] = CONNECTOR,
    ) -> None:
        """`arguments` are those of Python: `-m tailrace …`, or a script with its arguments. Output is appended."""
        self._fork_server = fork_server(modules)
        self.returncode: int | None = None
        for file in (output, errors or output):
            file.touch()  # so that it can be read before the process has started
        self.pid = self._fork_server.fork(
            {
                "arguments": list(arguments),
                "env": dict(os.environ if env is None else env),
                "cwd": str(cwd or Path.cwd()),
                "files": [os.devnull, str(output), str(errors or output)],
            }
        )

    def poll(self) -> int | None:
        if self.returncode is None:
            self._fork_server.look(0)
            self.returncode = self._fork_server.ended.pop(self.pid, None)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("tailrace", timeout or 0)
            self._fork_server.look(0.2)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    *arguments: str,
    program: Sequence[str] = TAILRACE,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 120,
    modules: tuple[str, ...] = CONNECTOR,
) -> subprocess.CompletedProcess[str]:
    """Runs `tailrace`, or another program, until it ends."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = Process([*program, *arguments], output=out, errors=err, env=env, cwd=cwd, modules=modules)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())


def killed(*arguments: object, at: str) -> None:
    """Runs `tailrace`, which must be killed at that failpoint."""
    ran = run(*map(str, arguments), env={**os.environ, "TAILRACE_KILL": at})
    assert ran.returncode == -signal.SIGKILL, (at, ran.stdout, ran.stderr)


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    """Forks on request and reports ends; returns the request in a forked process, None at the end."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = select.select([channel, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _report_ends(channel)
        if channel in ready:
            request = channel.recv(LARGEST)
            if not request:
                return None
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (woken, wake):
                    os.close(each)
                channel.close()
                asked: dict[str, Any] = json.loads(request)
                return asked
            channel.sendall(json.dumps({"began": pid}).encode())


def _report_ends(channel: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        channel.sendall(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _become(request: dict[str, Any]) -> None:
    """Sets up the forked process like a new interpreter."""
    for number, name in enumerate(request["files"]):
        opened = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    time.tzset()
    # It reads the environment when it is imported.
    importlib.reload(importlib.import_module("tailrace.failpoints"))
    program, *arguments = request["arguments"]
    if program == "-m":
        name, *arguments = arguments
        sys.path[0] = str(Path.cwd())
        sys.argv = [name, *arguments]
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(program).parent)
        sys.argv = [program, *arguments]
        runpy.run_path(program, run_name="__main__")


def _code(run: Callable[[], None]) -> int:
    """Runs a program; returns the exit code that an interpreter would have."""
    try:
        run()
    except SystemExit as ended:
        if isinstance(ended.code, int | None):
            return ended.code or 0
        print(ended.code, file=sys.stderr)  # noqa: T201 - as an interpreter does
        return 1
    except BaseException:  # noqa: BLE001 - as an interpreter does
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> None:
    """Ends like an interpreter, without destroying the inherited objects, which would copy their memory first."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    # Exempt from garbage collection, which would copy the memory in each forked process.
    gc.collect()
    gc.freeze()
    asked_for = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked_for is not None:
        _end(_code(lambda: _become(asked_for)))
