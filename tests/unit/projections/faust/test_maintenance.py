"""Markers are pruned by the time of their events."""

from __future__ import annotations

import asyncio
from typing import Any

from helpers.memory_store import MemoryStore
from tailrace.projections.core.store import Marker, Partition
from tailrace.projections.faust.app import projection_app
from tailrace.projections.faust.maintenance import prune
from tailrace.projections.projection import Projection

P0 = Partition("orders", 0)


def projection(**choices: Any) -> Projection:
    return Projection(projection_app("orders"), "orders", store=MemoryStore(), **choices)


def test_markers_are_pruned_by_the_time_of_their_events() -> None:
    async def pruned(found: Projection) -> list[str]:
        await found.store.open("orders")
        async with found.store.transaction(P0) as transaction:
            await transaction.mark([Marker("old", None, None, 1), Marker("new", None, None, 86_400_000)])
        assert await prune(found, 86_400_000 + 5) == (1 if found.spec.settings.keep_markers else 0)
        return list(found.store.records.markers)

    assert asyncio.run(pruned(projection(keep_markers=1))) == ["new"]
    assert asyncio.run(pruned(projection(keep_markers=None))) == ["old", "new"]
