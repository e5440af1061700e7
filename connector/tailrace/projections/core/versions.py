"""Whether an event may take effect now, by the version of its entity. Pure."""

from __future__ import annotations

from enum import Enum

from tailrace.projections.core.settings import Versions
from tailrace.projections.core.store import EntityState


class VersionCheck(Enum):
    """What the versions say about an event."""

    NOW = "now"
    STALE = "stale"
    LATER = "later"


def check_version(version: int | None, known: EntityState | None, rules: Versions) -> VersionCheck:
    """An event without a version is always taken: nothing can be said about it.

    A deleted entity keeps its version, so that what happened before the deletion stays stale.
    """
    if version is None:
        return VersionCheck.NOW
    if known is not None and version <= known.version:
        return VersionCheck.STALE
    if rules.gaps == "ignore":
        return VersionCheck.NOW
    if known is None:
        return VersionCheck.NOW if rules.first is None or version <= rules.first else VersionCheck.LATER
    return VersionCheck.NOW if version == known.version + 1 else VersionCheck.LATER
