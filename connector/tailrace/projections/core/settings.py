"""Settings of a projection, and everything else that applying an event depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tailrace.backoff import DEFAULT, Backoff
from tailrace.errors import ConfigError
from tailrace.projections.core.event import EventFunction
from tailrace.projections.core.handlers import Handlers
from tailrace.projections.core.handover import Handover
from tailrace.projections.core.tracing import Tracing
from tailrace.projections.core.versions import Versions, key_of, version_header

OnFailure = Literal["dead_letter", "halt"]
OnReplay = Literal["apply", "skip", "rebuild"]


@dataclass(frozen=True)
class Settings:
    """Numbers and choices of a projection; `Projection` says what each means."""

    events: int = 500
    within: float = 0.05
    max_attempts: int = 5
    time_limit: float = 30.0
    on_failure: OnFailure = "dead_letter"
    on_replay: OnReplay = "apply"
    versions: Versions | None = None
    give_up: float = 300.0
    keep_markers: float | None = None
    backoff: Backoff = DEFAULT

    def __post_init__(self) -> None:
        for name, least in (("events", 1), ("max_attempts", 1), ("within", 0), ("time_limit", 0.001), ("give_up", 1)):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name}={value} of a projection is too small", remedy=f"Give at least {least}.")
        delays = self.backoff
        if not (0 < delays.base <= delays.maximum and delays.multiplier >= 1 and 0 <= delays.jitter < 1):
            raise ConfigError(
                f"{delays} of a projection cannot be used",
                remedy="Give 0 < base <= maximum, a multiplier of at least 1, and 0 <= jitter < 1.",
            )
        for name, allowed in (("on_failure", ("dead_letter", "halt")), ("on_replay", ("apply", "skip", "rebuild"))):
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{name}={value!r} is not known", remedy=f"Give one of: {', '.join(allowed)}.")


@dataclass(frozen=True, slots=True)
class ProjectionSpec:
    """How a projection handles an event: everything except its store and its partition."""

    projection: str
    handlers: Handlers
    settings: Settings
    entity: EventFunction = key_of
    version: EventFunction = version_header
    tracing: Tracing = field(default_factory=Tracing)
    on_handler_call: Callable[[], None] = lambda: None
    """Called before each handler: a batch of slow handlers takes long, but does make progress."""
    handover: Handover | None = None
    """Where an agent takes the events from; None if handlers are called."""
