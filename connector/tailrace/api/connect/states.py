"""Pipelines as Kafka Connect shows connectors: states, traces, tasks. Pure.

Clients know the states of Connect and no others: RUNNING, FAILED, PAUSED, UNASSIGNED, RESTARTING, and STOPPED for
connectors. A pipeline has one task with the number 0, and none while it is stopped.
"""

from __future__ import annotations

from typing import Any

from tailrace import __version__
from tailrace.config.masking import masked
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.report import FAILED, PAUSED, RESTARTING, RETRYING, RUNNING, STARTING, STOPPED, WAITING

UNASSIGNED = "UNASSIGNED"
CONNECTOR_STATES = {
    STARTING: UNASSIGNED,
    WAITING: UNASSIGNED,
    RETRYING: RESTARTING,
    RUNNING: RUNNING,
    PAUSED: PAUSED,
    STOPPED: STOPPED,
    FAILED: FAILED,
    RESTARTING: RESTARTING,
}
WAITING_TEXT = "Another instance runs this pipeline. This worker takes over when it ends."


def connector_state(pipeline: ManagedPipeline) -> str:
    return CONNECTOR_STATES.get(pipeline.state, UNASSIGNED)


def has_task(pipeline: ManagedPipeline) -> bool:
    return pipeline.state != STOPPED


def trace(pipeline: ManagedPipeline) -> str:
    """Returns why a pipeline does not run; empty if it does."""
    lines = []
    if pipeline.state in (FAILED, RETRYING, RESTARTING) and pipeline.error is not None:
        lines.append(pipeline.error.text())
    if pipeline.state == WAITING:
        lines.append(WAITING_TEXT)
    if pipeline.config_error is not None:
        lines.append(f"The last change of the configuration is not in use.\n{pipeline.config_error.text()}")
    return "\n".join(lines)


def info_json(pipeline: ManagedPipeline) -> dict[str, Any]:
    """Returns Connect's ConnectorInfo, without secrets."""
    tasks = [{"connector": pipeline.name, "task": 0}] if has_task(pipeline) else []
    return {"name": pipeline.name, "config": shown_config(pipeline), "tasks": tasks, "type": "source"}


def shown_config(pipeline: ManagedPipeline) -> dict[str, str | None]:
    return {**masked(pipeline.config), "name": pipeline.name}


def status_json(pipeline: ManagedPipeline, worker_id: str, *, restarting: bool = False) -> dict[str, Any]:
    """Returns Connect's ConnectorStateInfo. `restarting`: a restart was asked for just now."""
    state = RESTARTING if restarting else connector_state(pipeline)
    found = {"state": state, "worker_id": worker_id, "version": __version__}
    if why := trace(pipeline):
        found["trace"] = why
    tasks = [{"id": 0, **found}] if has_task(pipeline) else []
    return {"name": pipeline.name, "connector": found, "tasks": tasks, "type": "source"}


def tasks_json(pipeline: ManagedPipeline) -> list[dict[str, Any]]:
    """Returns Connect's list of TaskInfo."""
    if not has_task(pipeline):
        return []
    config = {"task.class": "tailrace.Pipeline", **shown_config(pipeline)}
    return [{"id": {"connector": pipeline.name, "task": 0}, "config": config}]
