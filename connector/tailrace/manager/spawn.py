"""Starts pipeline processes by forking a warm process, in which everything is imported, and handles their end.

`multiprocessing` is not thread-safe here: of two threads that ask for the end of a process, one gets a wrong exit code.
So all calls for pipeline processes run in one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.process import _children  # type: ignore[attr-defined]
from typing import Any, TypeVar

import orjson

from tailrace.errors import ConfigError
from tailrace.manager.process import ProcessSpec, run_pipeline
from tailrace.manager.report import ErrorReport, PipelineReport

PRELOAD = "tailrace.manager.preload"
SOCKET_PATH = 107
"""Longest path of a Unix socket, in bytes."""
LONGEST_TEMP_FOLDER = SOCKET_PATH - len("/pymp-12345678/listener-12345678")
REPORT_BYTES = 4 << 20
"""Most bytes of one report."""
DRAIN_SECONDS = 0.5
"""How long the last reports of a process that has ended are read."""

Result = TypeVar("Result")


class WarmProcess:
    """The process from which others are forked. Started with the first of them."""

    def __init__(self) -> None:
        """Raises ConfigError if the path of the temporary folder is too long."""
        require_short_temp_folder()
        self.context: ForkServerContext = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([PRELOAD])
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="processes")

    async def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Runs a call of `multiprocessing` in the one thread for it."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def start(self, target: Callable[..., object], *arguments: object, name: str) -> ForkServerProcess:
        """Forks a process that calls `target`."""

        def begin() -> ForkServerProcess:
            process = self.context.Process(target=target, args=arguments, name=name)
            process.start()
            # Otherwise each later start, perhaps in another thread, would ask for the end of this process, too.
            _children.discard(process)
            return process

        return await self.call(begin)

    async def exit_code(self, process: ForkServerProcess) -> int:
        """Waits for the end of a process; returns its exit code, negative if a signal ended it."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(process.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(process.sentinel)

        def reap() -> int:
            process.join()
            code = process.exitcode
            process.close()
            return 255 if code is None else code

        return await self.call(reap)


def require_short_temp_folder() -> None:
    folder = os.fsencode(tempfile.gettempdir())
    if len(folder) > LONGEST_TEMP_FOLDER:
        raise ConfigError(
            f"the path of the temporary folder has {len(folder)} bytes, and no process can be started",
            why=f"`multiprocessing` creates a socket there, whose path may have {SOCKET_PATH} bytes.",
            remedy=f"Set TMPDIR to a folder whose path has at most {LONGEST_TEMP_FOLDER} bytes.",
        )


class PipelineProcess:
    """One running pipeline process as the worker sees it."""

    def __init__(self, warm: WarmProcess, spec: ProcessSpec, on_report: Callable[[PipelineReport], None]) -> None:
        self._warm = warm
        self._spec = spec
        self._on_report = on_report
        self._writer: asyncio.StreamWriter | None = None
        self.pid = 0
        self._pidfd = -1
        self.ended = asyncio.Event()
        self.exit_code: int | None = None
        self.asked_to_end = False
        """Whether `stop` was called."""
        self.heard_at = 0.0
        """When the last report came, by the clock of the event loop."""

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await self._warm.start(run_pipeline, theirs, self._spec, name=f"pipeline {self._spec.pipeline}")
        self.pid = process.pid or 0
        with contextlib.suppress(OSError):  # it has ended already
            self._pidfd = os.pidfd_open(self.pid)
        self.heard_at = asyncio.get_running_loop().time()
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=REPORT_BYTES)
        self._reading = asyncio.create_task(self._read(reader))
        self._ending = asyncio.create_task(self._end(process))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                self.heard_at = asyncio.get_running_loop().time()
                self._on_report(parse_report(line))

    async def _end(self, process: ForkServerProcess) -> None:
        code = await self._warm.exit_code(process)
        await asyncio.wait([self._reading], timeout=DRAIN_SECONDS)
        self._reading.cancel()
        if self._writer is not None:
            self._writer.close()
        self.exit_code = code
        self.ended.set()
        if self._pidfd >= 0:
            os.close(self._pidfd)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless the process has ended."""
        if not self.ended.is_set() and self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def send(self, command: dict[str, Any]) -> None:
        """Sends a command; it is lost if the process is about to end."""
        if self._writer is not None and not self.ended.is_set():
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.write(orjson.dumps(command) + b"\n")

    async def stop(self, seconds: float) -> None:
        """Ends the process: SIGTERM, and SIGKILL if it still runs after that time."""
        self.asked_to_end = True
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.ended.wait(), seconds)
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.ended.wait()


def parse_report(line: bytes) -> PipelineReport:
    """Reads a report; raises ValueError."""
    found = orjson.loads(line)
    try:
        error = ErrorReport(**found.pop("error")) if found.get("error") else None
        found.pop("error", None)
        return PipelineReport(**found, error=error)
    except (TypeError, AttributeError) as mistake:
        raise ValueError(str(mistake)) from None
