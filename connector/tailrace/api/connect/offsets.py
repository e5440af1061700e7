"""Offsets and topics of connectors. Each request that asks a server runs in a process of its own."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.connect import offset_commands
from tailrace.api.connect.answers import ConnectError, empty_answer, json_answer
from tailrace.api.connect.connectors import find_pipeline
from tailrace.api.connect.offset_commands import MOVE, SHOW, TOPICS
from tailrace.api.connect.offset_shapes import OLDEST, offsets_json, wanted_point
from tailrace.api.connect.requests import read_object
from tailrace.api.v1.process import CommandProcess
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.manager import PipelineManager
from tailrace.manager.report import RUNNING, STOPPED
from tailrace.positions.base import from_stored
from tailrace.worker.logs import StructuredLogger

MOST_PROCESSES = 4
SECONDS = 60.0
"""Connect's own limit for a request is 90 s."""
STOP_SECONDS = 10.0
"""How long to wait for the end of a process that was asked to stop."""
OUTPUT_BYTES = 4 << 20


class Offsets:
    """Handlers of `/connectors/{name}/offsets` and `/connectors/{name}/topics`."""

    def __init__(self, manager: PipelineManager) -> None:
        self._manager = manager
        self._free = asyncio.Semaphore(MOST_PROCESSES)
        self._log = StructuredLogger("tailrace.http")

    async def show(self, request: Request) -> Response:
        pipeline = find_pipeline(self._manager, request)
        report = pipeline.report
        if pipeline.state == RUNNING and report is not None and report.stored is not None:
            # No other instance can have moved it meanwhile.
            return json_answer(offsets_json(pipeline.name, from_stored(report.stored)))
        return json_answer(await self._ask(pipeline, SHOW))

    async def alter(self, request: Request) -> Response:
        pipeline = find_pipeline(self._manager, request)
        body = await read_object(request)
        kind = "mongo" if pipeline.settings is not None and pipeline.settings.source.mongo is not None else "postgres"
        point = wanted_point(pipeline.name, kind, body)
        return await self._move(pipeline, point)

    async def reset(self, request: Request) -> Response:
        """Moves the position back as far as the log reaches: a pipeline never forgets it."""
        return await self._move(find_pipeline(self._manager, request), OLDEST)

    async def topics(self, request: Request) -> Response:
        pipeline = find_pipeline(self._manager, request)
        return json_answer({pipeline.name: {"topics": await self._ask(pipeline, TOPICS)}})

    async def reset_topics(self, request: Request) -> Response:
        """Accepted without effect: topics follow from routing and position history, not from a list."""
        find_pipeline(self._manager, request)
        return empty_answer(202)

    async def _move(self, pipeline: ManagedPipeline, point: str) -> Response:
        if pipeline.target != STOPPED:
            raise ConnectError(
                400,
                "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for "
                "the specified connector by issuing a 'PUT' request to the "
                f"'/connectors/{pipeline.name}/stop' endpoint",
            )
        deadline = asyncio.get_running_loop().time() + STOP_SECONDS
        while pipeline.pid is not None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        return json_answer(await self._ask(pipeline, MOVE, point))

    async def _ask(self, pipeline: ManagedPipeline, what: str, *rest: str) -> Any:  # noqa: ANN401
        """Runs a command of `offset_commands` in its own process; raises ConnectError."""
        if pipeline.settings is None:
            raise ConnectError(400, pipeline.error.text() if pipeline.error else "the settings are invalid")
        try:
            async with asyncio.timeout(SECONDS), self._free:
                output = await self._output([what, str(pipeline.file), *rest])
        except TimeoutError:
            raise ConnectError(500, f"Request timed out after {SECONDS:.0f} s. See the log of the worker.") from None
        try:
            found = json.loads(output)
        except ValueError:
            self._log.error(
                "process failed", pipeline=pipeline.name, request=what, output=output.decode("utf-8", "replace")[-2000:]
            )
            raise ConnectError(
                500, "the process that asked the servers has failed. See the log of the worker"
            ) from None
        if "message" in found:
            raise ConnectError(found["status"], found["message"])
        return found["result"]

    async def _output(self, words: list[str]) -> bytes:
        with tempfile.TemporaryDirectory(prefix="tailrace-offsets-") as folder:
            process = await CommandProcess.start(self._manager.warm, offset_commands.run, words, Path(folder))
            try:
                output, errors, _ = await asyncio.gather(
                    process.stdout.read(OUTPUT_BYTES), process.stderr.read(OUTPUT_BYTES), process.wait()
                )
            except asyncio.CancelledError:
                await asyncio.shield(process.stop())
                raise
        return output if output else errors
