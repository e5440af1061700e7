"""Whether projections would know replayed events for what they are: their markers against the oldest event."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp

SKIPS = "passes them over (on_replay is `skip`)"
REBUILDS = "passes them over until it is made anew (on_replay is `rebuild`)"
COVERED = "covered: what it has applied, it passes over"
BEHIND = "events older than its markers are set aside, not applied"


async def horizons(app: ProjectionApp, topics: Collection[str], first_ms: int | None) -> list[dict[str, Any]]:
    """For each projection of the app that reads one of `topics`."""
    found: list[dict[str, Any]] = []
    for projection in app.projections:
        reads = sorted(set(projection.topics) & set(topics))
        if not reads:
            continue
        await projection.store.open(projection.name)
        try:
            horizon = await projection.store.horizon()
        finally:
            await projection.store.close()
        is_behind = first_ms is not None and first_ms < horizon
        passes = {"skip": SKIPS, "rebuild": REBUILDS}.get(projection.spec.settings.on_replay)
        found.append(
            {
                "projection": projection.name,
                "topics": reads,
                "horizon_ms": horizon or None,
                "covered": passes is not None or not is_behind,
                "verdict": passes or (BEHIND if is_behind else COVERED),
            }
        )
    return found
