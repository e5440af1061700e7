"""The projection of an agent: the agent applies its events instead of handlers.

Everything else is the same: reading, order, markers, retries, dead letters, metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tailrace.backoff import Backoff
from tailrace.errors import ConfigError
from tailrace.projections.core.decoding import Decode, decode_json
from tailrace.projections.core.event import Event
from tailrace.projections.core.handlers import Model, RegisteredHandler
from tailrace.projections.core.handover import Handover
from tailrace.projections.core.settings import OnFailure, OnReplay, Settings
from tailrace.projections.core.store import ProjectionStore
from tailrace.projections.faust.app import ProjectionApp
from tailrace.projections.projection import Projection
from tailrace.projections.reader.offset_coordinator import Start

REFUSED = {
    "versions": "Events that wait for an earlier version are applied when that one arrives, which only handlers allow.",
    "entity": "It belongs to `versions`, which only handlers allow.",
    "version": "It belongs to `versions`, which only handlers allow.",
    "events": "The agent says how many events it takes: `stream.take(500, within=0.05)`.",
    "within": "The agent says how long it waits: `stream.take(500, within=0.05)`.",
}
"""Settings of a `Projection` that an agent cannot have, and why."""


def agent_projection(
    app: ProjectionApp,
    handover: Handover,
    *topics: str,
    store: ProjectionStore[Any],
    name: str | None = None,
    letters: str | None = None,
    models: Mapping[str, Model] | None = None,
    decode: Decode = decode_json,
    start: Start = "earliest",
    max_attempts: int = Settings.max_attempts,
    time_limit: float = Settings.time_limit,
    on_failure: OnFailure = Settings.on_failure,
    on_replay: OnReplay = Settings.on_replay,
    give_up: float = Settings.give_up,
    keep_markers: float | None = 30.0,
    backoff: Backoff = Settings.backoff,
    **refused: object,
) -> Projection:
    """Declares the projection. `models` are pydantic models by event type, for `event.data`.

    The other settings are those of `Projection`.
    """
    for setting in refused:
        raise ConfigError(
            f"{name or app.conf.id}: an agent's events have no setting {setting}",
            why=REFUSED.get(setting, "It is not known."),
            remedy="Leave it out, or use a `Projection` with handlers." if setting in REFUSED else "Leave it out.",
        )
    if on_replay == "rebuild":
        raise ConfigError(
            f'{name or app.conf.id}: an agent\'s events with on_replay="rebuild"',
            why="Only projections with handlers can be rebuilt.",
            remedy='Choose "apply" or "skip", or use a `Projection` with handlers.',
        )
    projection = Projection(
        app,
        *topics,
        store=store,
        name=name,
        letters=letters,
        decode=decode,
        start=start,
        events=1,
        within=0.0,
        max_attempts=max_attempts,
        time_limit=time_limit,
        on_failure=on_failure,
        on_replay=on_replay,
        give_up=give_up,
        keep_markers=keep_markers,
        backoff=backoff,
    )
    projection.spec = replace(projection.spec, handover=handover)
    for kind, model in (models or {}).items():
        projection.handlers.add((kind,), RegisteredHandler(_never_called, model, deletes=False))
    projection.handlers.add((), RegisteredHandler(_never_called, None, deletes=False))
    return projection


async def _never_called(event: Event, effects: object) -> None:
    """Stands for the agent, which gets the events instead."""
