"""Events that have waited too long for an earlier version of their entity.

What is due by now is applied: its predecessor was, and did not release it. The rest is given up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tailrace.projections.core.apply import ApplyFailed, BatchResult, BatchRun, ProjectionSpec
from tailrace.projections.core.event import reread
from tailrace.projections.core.store import EventOutcome, StoreTransaction, WaitingEvent
from tailrace.projections.core.versions import VersionCheck, check_version


async def expire(
    transaction: StoreTransaction[Any],
    spec: ProjectionSpec,
    *,
    before_ms: int,
    limit: int,
    now_ms: int,
    is_rebuild: bool,
    dead_lettered: Collection[str] = (),
) -> tuple[BatchResult, list[WaitingEvent]]:
    """Applies, of what began to wait before `before_ms`, all that is due; returns what still waits in vain.

    Events whose ids are `dead_lettered` have gone to the dead letters.
    """
    await transaction.position()
    run = BatchRun(transaction, spec, 0, now_ms, dead_lettered)
    expired = await transaction.expired(before_ms, limit)
    remaining: list[WaitingEvent] = []
    # Once their entities are locked, nobody else releases or applies them.
    still = await run.recall({each.entity for each in expired})
    for each in sorted(expired, key=lambda each: (each.entity, each.version)):
        if each.event_id in run.released or each.event_id not in still:
            continue
        if each.event_id not in dead_lettered and _is_early(each, run, spec):
            remaining.append(each)
        else:
            await _apply(run, each, is_rebuild)
    await run.write_down()
    await transaction.flush()
    return run.applied, remaining


def _is_early(waiting: WaitingEvent, run: BatchRun, spec: ProjectionSpec) -> bool:
    versions = spec.settings.versions
    return (
        versions is not None
        and check_version(waiting.version, run.states.get(waiting.entity), versions) is VersionCheck.LATER
    )


async def _apply(run: BatchRun, waiting: WaitingEvent, is_rebuild: bool) -> None:
    """It, and what has waited for it."""
    following: WaitingEvent | None = waiting
    while following is not None:
        event = reread(following)
        event.is_rebuild = is_rebuild
        try:
            went_on = await run.waited(event)
        except Exception as error:
            raise ApplyFailed(error, None, event) from error
        following = run.successor(event) if went_on else None


async def give_up(transaction: StoreTransaction[Any], events: Sequence[WaitingEvent]) -> None:
    """They have gone to the dead letters, and wait no more."""
    if events:
        await transaction.release([event.event_id for event in events])
        await transaction.settle({event.event_id: EventOutcome.DEAD for event in events})
