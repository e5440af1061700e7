"""The routes of the JSON API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from tailrace.api.access import require_admin
from tailrace.api.audit import AuditLog, add_details
from tailrace.api.v1 import answers, openapi
from tailrace.api.v1.answers import answer, error_json, job_json, refusal, result_of
from tailrace.api.v1.command_stream import CommandCall, CommandResponse, output_of, read_call
from tailrace.api.v1.event_stream import EventStream, EventStreamResponse
from tailrace.api.v1.jobs import SHORT_AT_ONCE, Job, Jobs
from tailrace.api.v1.operation import Operation
from tailrace.api.v1.pipelines import pipeline_json, pipeline_state
from tailrace.api.v1.plans import Plans
from tailrace.api.v1.process import Run
from tailrace.api.v1.requests import OperationCall, from_body, from_query
from tailrace.errors import ConfigError, PipelineUnknown, TailraceError
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.manager import PipelineManager
from tailrace.manager.report import PAUSED, RUNNING, STOPPED, ErrorReport
from tailrace.manager.spawn import WarmProcess

PREFIX = "/api/v1"
WAIT_SECONDS = 30.0
"""An operation that takes longer is answered with its job."""
EVENT_ID = "event_id"
_TARGETS = {"pause": PAUSED, "resume": RUNNING, "start": RUNNING, "stop": STOPPED}

Endpoint = Callable[[Request], Awaitable[Response]]


class JsonApi:
    """The JSON API of a worker. Call `close` before the worker ends."""

    def __init__(
        self, manager: PipelineManager, operations: tuple[Operation, ...], warm: WarmProcess, run: Run
    ) -> None:
        self._manager = manager
        self._operations = operations
        self._document = openapi.document(operations)
        self.stream = EventStream(self._states)
        self.jobs = Jobs(warm, run, self._job_changed)
        self.plans = Plans()
        self._audit = AuditLog()

    def routes(self) -> list[BaseRoute]:
        app = Starlette(
            routes=list(self._routes()),
            exception_handlers={
                TailraceError: answers.on_tailrace_error,
                404: answers.on_http_error,
                405: answers.on_http_error,
                400: answers.on_http_error,
                Exception: answers.on_bug,
            },
        )
        return [Mount(PREFIX, app)]

    async def close(self) -> None:
        await self.stream.close()
        await self.jobs.close()

    def _routes(self) -> Iterator[BaseRoute]:
        yield Route("/openapi.json", self._openapi, methods=["GET"])
        yield Route("/stream", self._follow, methods=["GET"])
        yield Route("/jobs", self._list_jobs, methods=["GET"])
        yield Route("/jobs/{job_id}", self._show_job, methods=["GET"])
        yield Route("/jobs/{job_id}", self._stop_job, methods=["DELETE"])
        yield Route("/pipelines", self._list, methods=["GET"])
        yield Route("/pipelines/{name}", self._show, methods=["GET"])
        for verb in openapi.CHANGES:
            yield Route(f"/pipelines/{{name}}/{verb}", self._change(verb), methods=["POST"])
        yield Route("/command", self._run_command_on_all, methods=["POST"])
        yield Route("/pipelines/{name}/command", self._run_command, methods=["POST"])
        for each in self._operations:
            if each.name == openapi.DOCTOR:
                yield Route("/doctor", self._check_all(each), methods=[each.method])
            if each.name == openapi.TRACE:
                # An id may contain slashes.
                yield Route(f"/pipelines/{{name}}/events/{{{EVENT_ID}:path}}", self._trace(each), methods=["GET"])
                yield Route(f"/events/{{{EVENT_ID}:path}}", self._trace_everywhere(each), methods=["GET"])
            else:
                yield Route(f"/pipelines/{{name}}/{each.path}", self._call(each), methods=[each.method])

    async def _openapi(self, _: Request) -> Response:
        return answer(self._document)

    async def _list(self, _: Request) -> Response:
        pipelines = sorted(self._manager.pipelines.values(), key=lambda each: each.name)
        problems = [{"where": where, **error_json(error)} for where, error in sorted(self._manager.problems.items())]
        return answer({"pipelines": [pipeline_json(each) for each in pipelines], "problems": problems})

    async def _show(self, request: Request) -> Response:
        return answer(pipeline_json(self._pipeline(request), full=True))

    def _change(self, verb: str) -> Endpoint:
        async def change(request: Request) -> Response:
            name = self._pipeline(request).name
            if verb == "restart":
                await self._manager.restart(name)
            else:
                await self._manager.set_target(name, _TARGETS[verb])
            return answer(pipeline_json(self._manager.get(name)))

        return change

    def _call(self, operation: Operation) -> Endpoint:
        async def call(request: Request) -> Response:
            pipeline = self._pipeline(request)
            given = from_query(request, operation) if operation.method == "GET" else await from_body(request, operation)
            job = self._submit(request, operation, pipeline, given)
            return _accepted(job) if operation.long else await _awaited(job)

        return call

    def _submit(self, request: Request, operation: Operation, pipeline: ManagedPipeline, given: OperationCall) -> Job:
        if operation.shows_events:
            require_admin(request, f"use `{operation.name}`, which shows events")
        contents = dict(given.contents)
        if "plan" in contents:
            contents["plan"] = self.plans.resolved(contents["plan"])
        job = self.jobs.submit(operation, pipeline.name, [pipeline.file], given.values, contents)
        if operation.shows_events or operation.method != "GET":
            add_details(request, operation=operation.name, pipeline=pipeline.name, job=job.id)
        return job

    def _trace(self, operation: Operation) -> Endpoint:
        async def trace(request: Request) -> Response:
            given = from_query(request, operation, {EVENT_ID: request.path_params[EVENT_ID]})
            return await _awaited(self._submit(request, operation, self._pipeline(request), given))

        return trace

    def _trace_everywhere(self, operation: Operation) -> Endpoint:
        async def trace(request: Request) -> Response:
            event_id = request.path_params[EVENT_ID]
            given = from_query(request, operation, {EVENT_ID: event_id})
            places = asyncio.Semaphore(SHORT_AT_ONCE)

            async def ask(pipeline: ManagedPipeline) -> Job:
                async with places:  # however many pipelines there are, the queue is not filled
                    job = self._submit(request, operation, pipeline, given)
                    await job.ended.wait()
                    return job

            jobs = await asyncio.gather(*map(ask, list(self._manager.pipelines.values())))
            found: dict[str, Any] = {"id": event_id, "found": [], "errors": {}}
            for job in jobs:
                outcome = job.outcome
                if outcome is None or (outcome.error and outcome.error.code == "EventUnknown"):
                    continue
                if outcome.error is not None:
                    found["errors"][job.pipeline] = error_json(outcome.error)
                else:
                    found["found"].append(outcome.result)
            if not found["found"] and not found["errors"]:
                names = ", ".join(sorted(self._manager.pipelines)) or "none"
                what = f"no pipeline of this worker knows an event {event_id}"
                return refusal(ErrorReport("EventUnknown", what, f"Pipelines: {names}.", "Check the id."))
            return answer(found)

        return trace

    async def _run_command(self, request: Request) -> Any:  # noqa: ANN401 - any ASGI application is a response
        """For `tailrace --worker`. Not part of the documented API."""
        pipeline = self._pipeline(request)
        call = await read_call(request, self._operations)
        add_details(request, operation=call.operation.name, pipeline=pipeline.name)
        return self._command_response(request, call, [pipeline.file])

    async def _run_command_on_all(self, request: Request) -> Any:  # noqa: ANN401
        """The same with all pipelines, for a command that takes several."""
        call = await read_call(request, self._operations)
        if call.operation.name != openapi.DOCTOR:
            raise ConfigError("no pipeline is named", remedy="Give the name of a pipeline; see /api/v1/pipelines.")
        add_details(request, operation=call.operation.name)
        return self._command_response(request, call, self._files())

    def _command_response(self, request: Request, call: CommandCall, files: list[Path]) -> CommandResponse:
        self.jobs.require_room()
        add_details(request, exit_code=None)  # until it has ended
        return CommandResponse(output_of(self.jobs, call, files, lambda code: add_details(request, exit_code=code)))

    def _check_all(self, operation: Operation) -> Endpoint:
        async def check(request: Request) -> Response:
            given = await from_body(request, operation)
            job = self.jobs.submit(operation, "", self._files(), given.values, given.contents)
            add_details(request, operation=operation.name, job=job.id)
            return _accepted(job)

        return check

    def _files(self) -> list[Path]:
        """The settings files of all pipelines; raises PipelineUnknown if there are none."""
        files = [each.file for _, each in sorted(self._manager.pipelines.items())]
        if not files:
            raise PipelineUnknown("this worker has no pipelines", remedy="Add one; see /api/v1/pipelines.")
        return files

    async def _list_jobs(self, _: Request) -> Response:
        return answer({"jobs": [job_json(job, result=False) for job in self.jobs.all()]})

    async def _show_job(self, request: Request) -> Response:
        job = self.jobs.get(request.path_params["job_id"])
        if job.operation.shows_events:
            require_admin(request, f"read the result of `{job.operation.name}`, which shows events")
            add_details(request, operation=job.operation.name, pipeline=job.pipeline, job=job.id)
        return answer(job_json(job))

    async def _stop_job(self, request: Request) -> Response:
        job = await self.jobs.stop(request.path_params["job_id"])
        add_details(request, operation=job.operation.name, pipeline=job.pipeline, job=job.id)
        return answer(job_json(job))

    async def _follow(self, request: Request) -> Any:  # noqa: ANN401 - any ASGI application is a response
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return EventStreamResponse(self.stream)

    def _pipeline(self, request: Request) -> ManagedPipeline:
        try:
            return self._manager.get(request.path_params["name"])
        except PipelineUnknown as error:
            names = ", ".join(sorted(self._manager.pipelines)) or "none"
            remedy = f"Give the name of a pipeline, not a file. This worker has: {names}."
            raise PipelineUnknown(error.what, why=error.why, remedy=remedy) from None

    def _states(self) -> dict[str, dict[str, Any]]:
        return {name: pipeline_state(each) for name, each in self._manager.pipelines.items()}

    def _job_changed(self, job: Job) -> None:
        if job.ended.is_set() and job.outcome:
            if job.operation.writes:
                self.plans.keep(job.outcome.result)
            if job.operation.method != "GET":
                self._audit.job_ended(job.id, job.operation.name, job.pipeline, job.state, job.outcome.exit_code)
        self.stream.publish("job", job_json(job, result=False))


def _accepted(job: Job) -> Response:
    return answer(job_json(job), 202, {"location": f"{PREFIX}/jobs/{job.id}"})


async def _awaited(job: Job) -> Response:
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await job.ended.wait()
    except TimeoutError:
        return _accepted(job)
    return result_of(job.outcome) if job.outcome else _accepted(job)
