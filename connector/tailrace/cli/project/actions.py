"""`tailrace project --reset` and `--prune`."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tailrace.cli.output import say, table
from tailrace.errors import ConfigError
from tailrace.projections.faust.maintenance import prune
from tailrace.projections.rebuild.reset import plan

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp
    from tailrace.projections.projection import Projection


def reset(app: ProjectionApp, to: str, *, name: str | None, yes: bool) -> None:
    """Shows the new offset of each partition, and sets it with `yes`."""
    asyncio.run(_reset(app, chosen(app, name), to, yes=yes))


async def _reset(app: ProjectionApp, projection: Projection, to: str, *, yes: bool) -> None:
    await projection.store.open(projection.name)
    try:
        moves = await plan(app, projection, to)
        rows = [
            {
                "partition": move.partition,
                "next offset": "none" if move.stored is None else move.stored,
                "will be": move.target,
                "read again": max(0, (move.stored or 0) - move.target),
                "skipped": max(0, move.target - move.stored) if move.stored is not None else 0,
            }
            for move in moves
        ]
        table(f"{projection.name} to {to}", rows)
        if not yes:
            say("Nothing was changed. Add --yes to reset. Applied events are skipped when they are read again.")
            return
        await projection.store.reset({move.partition: move.target for move in moves})
        say(f"{projection.name} continues from there when it is started.")
    finally:
        await projection.store.close()


def prune_markers(app: ProjectionApp) -> None:
    """Deletes markers that are older than `keep_markers`."""
    asyncio.run(_prune(app))


async def _prune(app: ProjectionApp) -> None:
    for projection in app.projections:
        await projection.store.open(projection.name)
        try:
            deleted = await prune(projection, int(time.time() * 1000))
        finally:
            await projection.store.close()
        say(f"{projection.name}: {deleted} markers pruned")


def chosen(app: ProjectionApp, name: str | None) -> Projection:
    """Returns the projection that `name` selects."""
    names = [projection.name for projection in app.projections]
    if name is None and len(names) == 1:
        return app.projections[0]
    if name not in names:
        raise ConfigError(
            f"the app has no projection {name!r}" if name else f"the app has {len(names)} projections",
            remedy=f"Name one with --projection: {', '.join(names) or 'there is none'}.",
        )
    return app.projections[names.index(name)]
