"""A pipeline of a worker as the JSON API shows it."""

from __future__ import annotations

from typing import Any

from tailrace.api.v1.answers import error_json
from tailrace.manager.managed import ManagedPipeline


def pipeline_state(pipeline: ManagedPipeline) -> dict[str, Any]:
    """Returns what changes seldom: the event stream sends it on each change."""
    return {
        "name": pipeline.name,
        "state": pipeline.state,
        "target": pipeline.target,
        "error": None if pipeline.error is None else error_json(pipeline.error),
        "restarts": pipeline.restarts,
        "restart_at_ms": None if pipeline.restart_at is None else round(pipeline.restart_at * 1000),
    }


def pipeline_json(pipeline: ManagedPipeline, *, full: bool = False) -> dict[str, Any]:
    """Returns a pipeline; `full` adds what the probe last read from the servers."""
    report = pipeline.report
    facts = report.facts if report else {}
    lag = facts.get("lag") or {}
    shown = {
        **pipeline_state(pipeline),
        "pid": report.pid if report else None,
        "position": report.position or None if report else None,
        "lag": {name: lag.get(name) for name in ("bytes", "seconds", "events")},
        "reported_ms": report.at_ms if report else None,
        "from_topic": pipeline.from_topic,
    }
    return {**shown, "facts": facts} if full else shown
