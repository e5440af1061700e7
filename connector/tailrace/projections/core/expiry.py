"""Decides about events that have waited too long for an earlier version of their entity.

An event whose predecessor was applied by now is applied. The others are dead-lettered by the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tailrace.projections.core.apply import ApplyFailed, BatchResult, BatchRun
from tailrace.projections.core.event import restore_event
from tailrace.projections.core.settings import ProjectionSpec
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
    """Applies, of the events that wait since before `before_ms`, those that may be applied now; returns the others.

    `dead_lettered` holds the ids of events that are on the dead-letter topic already.
    """
    await transaction.position()
    run = BatchRun(transaction, spec, 0, now_ms, dead_lettered)
    expired = await transaction.expired(before_ms, limit)
    overdue: list[WaitingEvent] = []
    # From here on their entities are locked: nobody else releases or applies them.
    still_waiting = await run.load_entities({each.entity for each in expired})
    for each in sorted(expired, key=lambda each: (each.entity, each.version)):
        if each.event_id in run.released or each.event_id not in still_waiting:
            continue
        if each.event_id not in dead_lettered and _is_too_early(each, run, spec):
            overdue.append(each)
        else:
            await _apply(run, each, is_rebuild)
    await run.save()
    await transaction.flush()
    return run.result, overdue


def _is_too_early(waiting: WaitingEvent, run: BatchRun, spec: ProjectionSpec) -> bool:
    versions = spec.settings.versions
    if versions is None:
        return False
    return check_version(waiting.version, run.states.get(waiting.entity), versions) is VersionCheck.TOO_EARLY


async def _apply(run: BatchRun, waiting: WaitingEvent, is_rebuild: bool) -> None:
    """Applies an event, and then those that waited for it."""
    following: WaitingEvent | None = waiting
    while following is not None:
        event = restore_event(following)
        event.is_rebuild = is_rebuild
        try:
            took_effect = await run.apply_released(event)
        except Exception as error:
            raise ApplyFailed(error, None, event) from error
        following = run.successor(event) if took_effect else None


async def mark_dead(transaction: StoreTransaction[Any], events: Sequence[WaitingEvent]) -> None:
    """Stores that these events were dead-lettered and wait no more."""
    if events:
        await transaction.release([event.event_id for event in events])
        await transaction.set_outcomes({event.event_id: EventOutcome.DEAD for event in events})
