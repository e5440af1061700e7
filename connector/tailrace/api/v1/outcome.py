"""Reads the output of a command: its result, its progress, and the error that it ended with."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tailrace.api.v1.operation import Operation
from tailrace.api.v1.process import READ_BYTES
from tailrace.manager.report import ErrorReport

MAX_RESULT_BYTES = 16_000_000
STDERR_BYTES = 64_000
"""How much of the end of stderr is kept."""
EXIT_INTERRUPTED = 130
VERDICT = 1
"""The exit code of a command whose check failed: its result says what was found."""
AGAIN = "Start it again: an operation that was stopped continues, and nothing is published twice."


class JobProgress(NamedTuple):
    """The completed share, from 0 to 1, if it is known, and a short text."""

    share: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended: with a result, or with an error."""

    exit_code: int | None
    result: Any
    error: ErrorReport | None
    size: int = 0


class OutputCollector:
    """Collects the output of a command, up to a limit."""

    def __init__(self) -> None:
        self.lines = 0
        """Number of lines of the result so far."""
        self.progress = JobProgress()
        self.too_large = False
        self.too_slow = False
        self.stdout = bytearray()
        self.stderr = bytearray()

    async def collect(
        self,
        stdout: asyncio.StreamReader,
        stderr: asyncio.StreamReader,
        changed: Callable[[], None],
        send: Callable[[int], None],
    ) -> None:
        """Reads both to their ends. `changed` is called for each new progress, `send` signals the process."""
        await asyncio.gather(self._collect_result(stdout, send), self._collect_messages(stderr, changed))

    def forget(self) -> None:
        """Frees the texts."""
        self.stdout, self.stderr = bytearray(), bytearray()

    async def _collect_result(self, stream: asyncio.StreamReader, send: Callable[[int], None]) -> None:
        while chunk := await stream.read(READ_BYTES):
            self.lines += chunk.count(b"\n")
            if len(self.stdout) + len(chunk) <= MAX_RESULT_BYTES:
                self.stdout += chunk
            elif not self.too_large:
                self.too_large = True
                send(signal.SIGTERM)

    async def _collect_messages(self, stream: asyncio.StreamReader, changed: Callable[[], None]) -> None:
        rest = b""
        while chunk := await stream.read(READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-STDERR_BYTES:]
            for line in lines:
                found = progress_in(line)
                if found is None:
                    self.stderr += line + b"\n"
                elif found != self.progress:
                    self.progress = found
                    changed()
            del self.stderr[:-STDERR_BYTES]
        self.stderr += rest


def progress_in(line: bytes) -> JobProgress | None:
    """Returns the progress that a line of stderr reports; None if it is another line."""
    if not line.startswith(b'{"progress"'):
        return None
    try:
        found = json.loads(line)
        return JobProgress(float(found["progress"]), str(found.get("text", "")))
    except (ValueError, TypeError, KeyError):
        return None


def outcome_of(operation: Operation, code: int, output: OutputCollector, *, stopped: bool) -> Outcome:
    """Decides what the end of a command means."""
    if output.too_large:
        error = ErrorReport(
            "ResultTooLarge",
            f"the result has more than {MAX_RESULT_BYTES:,} bytes",
            remedy="Ask for less, with filters or a limit.",
        )
        return Outcome(code, None, error)
    if output.too_slow:
        error = ErrorReport(
            "Unavailable",
            f"`{operation.name}` did not end in time and was stopped",
            why="A server is slow, or there is very much to read.",
            remedy="Ask for less, with filters or a limit; or see `status` for the servers.",
        )
        return Outcome(code, None, error)
    if code < 0:
        return Outcome(code, None, _killed(code, stopped=stopped))
    if code == EXIT_INTERRUPTED:
        return Outcome(code, None, ErrorReport("Stopped", "the operation was stopped before it ended", remedy=AGAIN))
    if code > VERDICT or (code == VERDICT and not output.stdout.strip()):
        return Outcome(code, None, _error_in(bytes(output.stderr), code))
    try:
        result = _parsed(bytes(output.stdout), lines=operation.lines)
    except ValueError:
        return Outcome(code, None, _bug(f"`{operation.name}` printed a result that is not JSON"))
    # A command may print its result and then an error, such as `topics plan` for a setting that Kafka refuses.
    return Outcome(code, result, None, len(output.stdout))


def _parsed(text: bytes, *, lines: bool) -> Any:  # noqa: ANN401 - any JSON value
    if lines:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return json.loads(text)


def _error_in(text: bytes, code: int) -> ErrorReport:
    """Returns the error that a command printed as JSON, as its last line."""
    for line in reversed(text.splitlines()):
        if line.startswith(b'{"error"'):
            try:
                found = json.loads(line)
                name, what, why, remedy = (str(found.get(part) or "") for part in ("error", "what", "why", "remedy"))
                return ErrorReport(name, what, why, remedy)
            except ValueError:
                break
    return _bug(f"the command ended with exit code {code} and without an error")


def _bug(what: str) -> ErrorReport:
    return ErrorReport("WorkerError", what, remedy="See the worker's log, and report it as a bug.")


def _killed(code: int, *, stopped: bool) -> ErrorReport:
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if stopped:
        return ErrorReport("Stopped", f"the operation was stopped with {name}", remedy=AGAIN)
    return ErrorReport(
        "Killed",
        f"the process of the operation was killed with {name}",
        why="Someone killed it, or the system had no memory left.",
        remedy=AGAIN,
    )
