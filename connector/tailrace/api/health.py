"""`/livez`, `/readyz` and `/health`: whether the worker answers, whether it works, and all checks with remedies.

`/health` begins as Kafka Connect's (KIP-1017): `status` is healthy, starting or unhealthy, with 200, 503 or 500.
"""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from tailrace import __version__
from tailrace.api.access import identity_of
from tailrace.api.health_checks import FAIL, Groups, first_failed, groups, worst
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.manager import PipelineManager
from tailrace.manager.report import PAUSED, RUNNING, STARTING, STOPPED, WAITING

HEALTHY, STARTING_UP, UNHEALTHY = "healthy", "starting", "unhealthy"
CODES = {HEALTHY: 200, STARTING_UP: 503, UNHEALTHY: 500}


def routes(manager: PipelineManager) -> list[BaseRoute]:
    """Returns the routes of all health checks."""

    async def livez(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        ready, answer = readiness(manager)
        if identity_of(request) is None:
            del answer["pipelines"]  # with authentication, this path is open to everybody: `/health` has the names
        return JSONResponse(answer, 200 if ready else 503)

    async def health(request: Request) -> Response:
        only = request.query_params.get("pipeline")
        chosen = [manager.get(only)] if only else list(manager.pipelines.values())
        answer = health_of(chosen, is_started=manager.is_started, now=time.time())
        problems = {place: {"code": each.code, "what": each.what} for place, each in manager.problems.items()}
        if problems and not only:
            answer["problems"] = problems
        return JSONResponse(answer, CODES[answer["status"]])

    return [Route("/livez", livez), Route("/readyz", readyz), Route("/health", health)]


def readiness(manager: PipelineManager) -> tuple[bool, dict[str, Any]]:
    """Whether the worker does its work: its configurations are read, and a pipeline runs if any should.

    One pipeline that fails does not make a worker with others unready: a restart of all of them would not help it.
    """
    wanted = [each for each in manager.pipelines.values() if each.target == RUNNING]
    runs = not wanted or any(each.state in (RUNNING, WAITING) for each in wanted)
    states = {each.name: each.state for each in manager.pipelines.values()}
    ready = manager.is_started and runs
    return ready, {"status": "ok" if ready else "failed", "pipelines": states}


def health_of(pipelines: list[ManagedPipeline], *, is_started: bool, now: float) -> dict[str, Any]:
    """Returns the answer of `/health` for some pipelines."""
    found = {each.name: groups(each, now) for each in pipelines}
    shown = {each.name: _shown(each, found[each.name]) for each in pipelines}
    failed = [name for name, each in shown.items() if each["status"] == UNHEALTHY]
    starting = [name for name, each in shown.items() if each["status"] == STARTING_UP]
    status, message = HEALTHY, f"All {len(pipelines)} pipelines are healthy."
    if failed:
        status = UNHEALTHY
        first = first_failed(found[failed[0]])
        message = (
            f"{len(failed)} of {len(pipelines)} pipelines are unhealthy. {failed[0]}: {first.what if first else ''}"
        )
    elif starting or not is_started:
        status = STARTING_UP
        message = f"{', '.join(starting)} is starting." if starting else "The worker is reading its configurations."
    elif not pipelines:
        message = "The worker has no pipelines."
    return {"status": status, "message": message, "version": __version__, "pipelines": shown}


def _shown(pipeline: ManagedPipeline, found: Groups) -> dict[str, Any]:
    checks = [check for group in found.values() for check in group.values()]
    status = UNHEALTHY if worst(checks) == FAIL else STARTING_UP if pipeline.state == STARTING else HEALTHY
    if pipeline.state in (PAUSED, STOPPED):
        status = HEALTHY
    answer: dict[str, Any] = {"status": status, "state": pipeline.state}
    for name, group in found.items():
        shown = {each: check.to_json() for each, check in group.items()}
        answer[name] = {"status": worst(group.values()), "checks": shown}
    return answer
