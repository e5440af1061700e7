"""`on_log_loss: recover`: a running pipeline whose log was lost recovers by itself, and goes on.

Off by default: that a log was lost is worth a person's look. What may as well be a mistake in the settings (another
server, a lost offsets topic) is never recovered from by itself; neither is what cannot be decided.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.errors import TailraceError
from tailrace.recovery.apply import RecoveryRun, fence
from tailrace.recovery.backend import NOT_BY_ITSELF, RECOVERABLE
from tailrace.recovery.plan import RecoveryPlanner
from tailrace.state.status import announce
from tailrace.wakeup import Wakeup
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.wiring import Wiring


def recover(error: TailraceError, wiring: Wiring, wake: Wakeup, stopping: Callable[[], bool]) -> bool:
    """Whether the gap was closed; False if that is not for us to do. Raises what the recovery ended with."""
    if not isinstance(error, RECOVERABLE) or isinstance(error, NOT_BY_ITSELF):
        return False
    log = StructuredLogger(pipeline=wiring.settings.pipeline)
    survey = RecoveryPlanner(wiring)
    try:
        case = survey.case(error=error)
        if case.elsewhere or case.stored is None:
            return False
        announce(wiring.kafka, "RECOVERING", error)
        log.warning("recovering", error=error.code, what=error.what, why=error.why, lost=str(case.lost))
        fence(wiring)
        plan = survey.plan(case)
        done = RecoveryRun(survey, plan, wake=wake, stopping=stopping).run()
    finally:
        survey.close()
    log.warning(
        "recovered" if done.complete else "recovery interrupted",
        rows=done.tally.rows,
        events=done.published,
        dead_letters=done.dead_letters,
        first_ms=done.tally.first_ms,
        last_ms=done.tally.last_ms,
        position=str(done.position),
        notes="; ".join(plan.notes),
    )
    return True
