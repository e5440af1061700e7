"""Runs a command in a process of its own, forked from the worker's warm process, with its output in pipes.

So a command can neither block the worker nor leave anything behind in it. The process has a session of its own, no
input, and an empty working folder that is deleted afterwards. It ends with the worker.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from asyncio import StreamReader
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NoReturn

from tailrace.manager.process import die_with_parent
from tailrace.manager.spawn import WarmProcess

READ_BYTES = 65_536
"""Unread output of a command; then it waits."""
GRACE_SECONDS = 12.0
"""From SIGTERM to SIGKILL: more than commands need to finish a batch."""
DRAIN_SECONDS = 5.0
"""How long output is read after the process has ended, if a process that it started still holds the pipe."""

Run = Callable[[list[str]], int]
"""Runs a command line and returns the exit code. It must be a function of a module, because it is sent by its name."""


class CommandProcess:
    """One running command."""

    def __init__(
        self, warm: WarmProcess, process: ForkServerProcess, streams: tuple[StreamReader, StreamReader]
    ) -> None:
        self.stdout, self.stderr = streams
        self.pid = process.pid or 0
        self._exit_code: int | None = None
        self._ending = asyncio.create_task(self._end(warm, process), name=f"end of process {self.pid}")

    @classmethod
    async def start(cls, warm: WarmProcess, run: Run, words: list[str], folder: Path) -> CommandProcess:
        """Starts a command."""
        (out, out_end), (err, err_end) = (multiprocessing.Pipe(duplex=False) for _ in range(2))
        try:
            process = await warm.start(_main, run, words, str(folder), out_end, err_end, name=f"command {words[0]}")
        except BaseException:
            out.close()
            err.close()
            raise
        finally:
            out_end.close()
            err_end.close()
        return cls(warm, process, (await _reader(out), await _reader(err)))

    def signal(self, number: int) -> None:
        """Sends a signal to the command and the processes it started."""
        if self._exit_code is None and self.pid:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
                return
            # It has no session of its own yet.
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    async def wait(self) -> int:
        """Returns the exit code; negative for the signal that killed it."""
        return await asyncio.shield(self._ending)

    async def stop(self) -> int:
        """Ends the command: SIGTERM, then SIGKILL."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                return await self.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            return await self.wait()

    async def _end(self, warm: WarmProcess, process: ForkServerProcess) -> int:
        self._exit_code = await warm.exit_code(process)
        # Processes that the command started and left behind.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return self._exit_code


async def _reader(connection: Connection) -> StreamReader:
    reader = StreamReader(limit=READ_BYTES)
    pipe = os.fdopen(os.dup(connection.fileno()), "rb", buffering=0)
    connection.close()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader


def _main(run: Run, words: list[str], folder: str, out: Connection, err: Connection) -> NoReturn:
    """The main function of the process."""
    die_with_parent()
    os.setsid()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for given, standard in ((nothing, 0), (out.fileno(), 1), (err.fileno(), 2)):
        os.dup2(given, standard)
    os.close(nothing)
    out.close()
    err.close()
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    try:
        code = run(words)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Threads of drivers may still run, and nothing here has to be cleaned up.
    os._exit(code)
