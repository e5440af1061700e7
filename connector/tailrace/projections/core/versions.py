"""Entity versions: which version an event carries, and whether it may be applied now. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from tailrace.errors import ConfigError
from tailrace.projections.core.event import Event, to_text
from tailrace.projections.core.store import EntityState

MAX_VERSION_DIGITS = 18
"""Such a number fits into 64 bits."""
Gaps = Literal["ignore", "wait"]


def key_of(event: Event) -> str | None:
    """Returns the event's key: the default of `entity`."""
    return None if event.key is None else to_text(event.key)


def version_header(event: Event) -> int | None:
    """Returns the number in the header `entity_version`: the default of `version`."""
    value = event.header("entity_version")
    if value is None or not (value.isascii() and value.isdigit()) or len(value) > MAX_VERSION_DIGITS:
        return None
    return int(value)


@dataclass(frozen=True, slots=True)
class Versions:
    """Events carry the version of their entity; one that is not newer than the last applied version is stale.

    With `gaps="wait"` an event that arrives before its predecessor waits for it, for at most `timeout` seconds, and is
    dead-lettered then. `first` is the version that entities start with; None accepts any first version.
    """

    gaps: Gaps = "ignore"
    timeout: float = 300.0
    first: int | None = 1

    def __post_init__(self) -> None:
        if self.gaps not in ("ignore", "wait"):
            raise ConfigError(f"gaps={self.gaps!r} is not known", remedy="Give one of: ignore, wait.")


class VersionCheck(Enum):
    """Whether an event may be applied, by the version of its entity."""

    APPLY = "apply"
    STALE = "stale"
    TOO_EARLY = "too early"


def check_version(version: int | None, known: EntityState | None, versions: Versions) -> VersionCheck:
    """Compares an event's version with the last applied one. An event without a version is always applied.

    A deleted entity keeps its version, so events from before the deletion stay stale.
    """
    if version is None:
        return VersionCheck.APPLY
    if known is not None and version <= known.version:
        return VersionCheck.STALE
    if versions.gaps == "ignore":
        return VersionCheck.APPLY
    if known is None:
        return VersionCheck.APPLY if versions.first is None or version <= versions.first else VersionCheck.TOO_EARLY
    return VersionCheck.APPLY if version == known.version + 1 else VersionCheck.TOO_EARLY
