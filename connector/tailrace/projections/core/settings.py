"""What a projection can be told: how much at once, how long to try, what to do about failures, replays and gaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tailrace.errors import ConfigError
from tailrace.projections.core.event import Event, text

MOST_DIGITS = 18
"""Of a version: what fits into 64 bits."""
OnFailure = Literal["dead_letter", "halt"]
OnReplay = Literal["apply", "skip", "rebuild"]
Gaps = Literal["ignore", "wait"]


def key_of(event: Event) -> str | None:
    """The entity an event is about, if nothing else is said: its key."""
    return None if event.key is None else text(event.key)


def version_header(event: Event) -> int | None:
    """The version of its entity, if nothing else is said: the header `entity_version`."""
    told = event.header("entity_version")
    return int(told) if told is not None and told.isascii() and told.isdigit() and len(told) <= MOST_DIGITS else None


@dataclass(frozen=True, slots=True)
class Versions:
    """Events carry the version of their entity; what is not newer than the last one applied is stale.

    With `gaps="wait"` an event that comes before its predecessor waits for it, at most `timeout` seconds, and then goes
    to the dead letters. `first` is the version entities begin with; None takes whatever comes first.
    """

    gaps: Gaps = "ignore"
    timeout: float = 300.0
    first: int | None = 1

    def __post_init__(self) -> None:
        if self.gaps not in ("ignore", "wait"):
            raise ConfigError(f"gaps={self.gaps!r} is not known", remedy="Give one of: ignore, wait.")


@dataclass(frozen=True)
class Settings:
    """See `Projection` for what each means."""

    events: int = 500
    within: float = 0.05
    max_attempts: int = 5
    time_limit: float = 30.0
    on_failure: OnFailure = "dead_letter"
    on_replay: OnReplay = "apply"
    versions: Versions | None = None
    give_up: float = 300.0
    keep_markers: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("events", 1), ("max_attempts", 1), ("within", 0), ("time_limit", 0.001), ("give_up", 1)):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name}={value} of a projection is too small", remedy=f"Give at least {least}.")
        for name, allowed in (("on_failure", ("dead_letter", "halt")), ("on_replay", ("apply", "skip", "rebuild"))):
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{name}={value!r} is not known", remedy=f"Give one of: {', '.join(allowed)}.")
