"""Events that have waited too long for an earlier version of their entity.

What is due by now is applied: its predecessor was, and did not release it. The rest is given up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tailrace.projections.core.apply import Applied, Failed, Rules, Run
from tailrace.projections.core.event import reread
from tailrace.projections.core.store import Outcome, Transaction, Waiting
from tailrace.projections.core.versions import Turn, turn


async def expire(
    transaction: Transaction[Any],
    rules: Rules,
    *,
    before_ms: int,
    limit: int,
    now_ms: int,
    is_retold: bool,
    doomed: Collection[str] = (),
) -> tuple[Applied, list[Waiting]]:
    """Applies, of what began to wait before `before_ms`, all that is due; returns what still waits in vain.

    Events whose ids are `doomed` have gone to the dead letters.
    """
    await transaction.position()
    run = Run(transaction, rules, 0, now_ms, doomed)
    expired = await transaction.expired(before_ms, limit)
    remaining: list[Waiting] = []
    # Once their entities are locked, nobody else releases or applies them.
    still = await run.recall({each.entity for each in expired})
    for each in sorted(expired, key=lambda each: (each.entity, each.version)):
        if each.event_id in run.released or each.event_id not in still:
            continue
        if each.event_id not in doomed and _is_early(each, run, rules):
            remaining.append(each)
        else:
            await _apply(run, each, is_retold)
    await run.write_down()
    await transaction.flush()
    return run.applied, remaining


def _is_early(waiting: Waiting, run: Run, rules: Rules) -> bool:
    versions = rules.settings.versions
    return versions is not None and turn(waiting.version, run.states.get(waiting.entity), versions) is Turn.LATER


async def _apply(run: Run, waiting: Waiting, is_retold: bool) -> None:
    """It, and what has waited for it."""
    following: Waiting | None = waiting
    while following is not None:
        event = reread(following)
        event.is_retold = is_retold
        try:
            went_on = await run.waited(event)
        except Exception as error:
            raise Failed(error, None, event) from error
        following = run.successor(event) if went_on else None


async def give_up(transaction: Transaction[Any], events: Sequence[Waiting]) -> None:
    """They have gone to the dead letters, and wait no more."""
    if events:
        await transaction.release([event.event_id for event in events])
        await transaction.settle({event.event_id: Outcome.DEAD for event in events})
