"""Runs a command for `tailrace --worker` and sends its output while it runs, one JSON object per line.

The command ends with the connection, as a local one ends with Ctrl-C.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
import json
import re
import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from tailrace.api.v1.event_stream import disconnected
from tailrace.api.v1.jobs import Jobs
from tailrace.api.v1.operation import Operation, Value, by_name
from tailrace.api.v1.outcome import MAX_RESULT_BYTES
from tailrace.api.v1.process import DRAIN_SECONDS, READ_BYTES, CommandProcess
from tailrace.api.v1.requests import parsed, read_object
from tailrace.errors import ConfigError

KEEPALIVE_SECONDS = 10.0
EXIT_KILLED = 3
_file_name = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}").fullmatch


class CommandCall(NamedTuple):
    """A command with its parameters. `contents` are files that it reads, by parameter, with the names to show."""

    operation: Operation
    values: dict[str, Value]
    contents: dict[str, bytes]
    names: dict[str, str]
    as_json: bool
    yes: bool
    output: str


async def read_call(request: Request, operations: tuple[Operation, ...]) -> CommandCall:
    """Reads the body of a request; raises ConfigError if it is not a call."""
    given = {name: parsed(raw) for name, raw in (await read_object(request)).items()}
    operation = by_name(operations, given.pop("command", None))
    values = _object(given.pop("parameters", {}), "parameters")
    contents = _object(given.pop("contents", {}), "contents")
    as_json, yes = (given.pop(name, False) for name in ("json", "yes"))
    output = given.pop("output", "")
    if given:
        raise ConfigError(f"the call has an unknown field {next(iter(given))!r}", remedy="Use the same version.")
    if not (isinstance(as_json, bool) and isinstance(yes, bool)):
        raise ConfigError("json and yes must be true or false", remedy="Use the same version.")
    if output and not (operation.writes and isinstance(output, str) and _file_name(output)):
        raise ConfigError(
            f"{output!r} cannot be the name of the result's file", remedy="Use letters, digits, . _ and -."
        )
    operation.require_all({**values, **contents})
    files = {name: _file(operation, name, each) for name, each in contents.items()}
    return CommandCall(
        operation,
        {name: operation.parameter(name).checked(value) for name, value in values.items()},
        {name: content for name, (_, content) in files.items()},
        {name: shown for name, (shown, _) in files.items()},
        as_json,
        yes,
        output,
    )


async def output_of(
    jobs: Jobs, call: CommandCall, pipelines: Sequence[Path], ended: Callable[[int], None]
) -> AsyncGenerator[bytes, None]:
    """Runs the command; yields its output, the files that it wrote, and its exit code, which `ended` gets as well."""
    operation = call.operation
    jobs.require_room()
    folder, files = jobs.new_folder(call.contents, call.names)
    paths = [str(file.resolve()) for file in pipelines]
    words = operation.words(paths, call.values, files, as_json=call.as_json, yes=call.yes)
    if operation.writes:
        words.insert(len(operation.name.split()), f"{operation.writes}={call.output or '.'}")
    process: CommandProcess | None = None
    try:
        async with jobs.slot(operation):
            process = await CommandProcess.start(jobs.warm, jobs.run, words, folder)
            async with aclosing(_lines(process)) as lines:
                async for line in lines:
                    yield line
            code = await process.wait()
        ended(code)
        if operation.writes:
            for written in sorted(folder.iterdir()):
                if written.name not in files.values() and written.stat().st_size <= MAX_RESULT_BYTES:
                    yield _line({"file": written.name, "content": written.read_text()})
        if code < 0:
            killed = "Killed: the worker's process of the command was killed. Run it again: nothing is published twice."
            yield _line({"stderr": f"{killed}\n"})
        yield _line({"exit_code": EXIT_KILLED if code < 0 else code})
    finally:
        if process is not None:
            await asyncio.shield(process.stop())
        shutil.rmtree(folder, ignore_errors=True)


class CommandResponse:
    """Sends the output of a command. If the client disconnects, the command is stopped."""

    def __init__(self, output: AsyncGenerator[bytes, None]) -> None:
        self._output = output

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        waiting = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait({sending, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            if not sending.done():
                sending.cancel()
            try:
                await sending
            except asyncio.CancelledError:
                pass  # the client is gone
            finally:
                await self._output.aclose()

    async def _send(self, send: Send) -> None:
        headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for line in self._output:
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _lines(process: CommandProcess) -> AsyncGenerator[bytes, None]:
    queue: asyncio.Queue[bytes | None] = asyncio.Queue(4)

    async def pump(stream: asyncio.StreamReader, name: str) -> None:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        while chunk := await stream.read(READ_BYTES):
            await queue.put(_line({name: decode(chunk)}))

    async def pump_all() -> None:
        pumps = [asyncio.create_task(pump(*each)) for each in ((process.stdout, "stdout"), (process.stderr, "stderr"))]
        try:
            await process.wait()
            await asyncio.wait(pumps, timeout=DRAIN_SECONDS)
        finally:
            for each in pumps:
                each.cancel()
            await queue.put(None)

    task = asyncio.create_task(pump_all())
    try:
        while True:
            try:
                async with asyncio.timeout(KEEPALIVE_SECONDS):
                    line = await queue.get()
            except TimeoutError:
                line = b"\n"  # finds out whether the client is still there
            if line is None:
                return
            yield line
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode(errors="replace") + b"\n"


def _object(given: object, name: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ConfigError(f"{name} must be an object", remedy="Use the same version of Tailrace on both sides.")
    return given


def _file(operation: Operation, name: str, given: object) -> tuple[str, bytes]:
    """Returns the name to show for a file, and its content."""
    if operation.parameter(name).kind != "content" or not isinstance(given, dict):
        raise ConfigError(f"{name} is not a file", remedy="Use the same version of Tailrace on both sides.")
    shown, text = given.get("name"), given.get("base64")
    if not (isinstance(shown, str) and isinstance(text, str)):
        raise ConfigError(f"the file {name} has no name or content", remedy="Use the same version on both sides.")
    try:
        return shown if _file_name(shown) else f"{name}.json", base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"the content of {name} is not base64", remedy="Use the same version.") from None
