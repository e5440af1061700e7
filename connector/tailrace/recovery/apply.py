"""Applies a recovery plan with the pipeline's own processor and publisher, so events and position share a transaction.

All other instances of the pipeline are fenced first. Only then is Kafka read for the last time, and nothing is changed
in the database before that. Every stored position carries the mark of the recovery until the last row is published; the
position after that is where `tailrace run` continues.

`recover` does the same automatically, for `on_log_loss: recover`. That is off by default, because a person should look
at a lost log. What may be a mistake in the settings (another server, a lost offsets topic) and what cannot be decided
is never recovered automatically.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tailrace.check.health import read_kafka_status
from tailrace.errors import (
    ConfigError,
    Fenced,
    RecordsRefused,
    TailraceError,
    TopicLimitsChanged,
    TopicRefused,
    Unavailable,
)
from tailrace.kafka.publisher import Publisher
from tailrace.pipeline.loop import PipelineLoop
from tailrace.positions.base import Position
from tailrace.recovery.backend import NOT_BY_ITSELF, RECOVERABLE
from tailrace.recovery.evidence import streams
from tailrace.recovery.plan import RecoveryPlan, RecoveryPlanner
from tailrace.recovery.row_filter import RowFilter, undecided
from tailrace.recovery.rules import RecoveryTally
from tailrace.state import rewind_marker, sequences
from tailrace.state.ownership import Ownership
from tailrace.state.status import announce
from tailrace.state.stored_state import StoredState
from tailrace.wakeup import Wakeup
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.wiring import Wiring


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """The result of a recovery; not `complete` if it was stopped before the end."""

    published: int
    dead_letters: int
    tally: RecoveryTally
    position: Position | None
    complete: bool


class RecoveryRun:
    """One recovery. `ownership` takes the pipeline over; a supervisor that owns it already passes None."""

    def __init__(
        self,
        planner: RecoveryPlanner,
        plan: RecoveryPlan,
        *,
        wakeup: Wakeup,
        stopping: Callable[[], bool] = lambda: False,
        on_progress: Callable[[int], None] = lambda _: None,
        ownership: Ownership | None = None,
    ) -> None:
        self._planner = planner
        self._plan = plan
        self._wakeup = wakeup
        self._stopping = stopping
        self._ownership = ownership
        self._row_filter = planner.row_filter(plan.case, plan.rules, strict=True, on_progress=on_progress)
        self._counts: Counter[str] = Counter()

    def run(self) -> RecoveryResult:
        if self._plan.tally.undecided:
            raise undecided(self._plan.tally)
        kafka = self._planner.wiring.kafka
        admin = self._planner.wiring.admin()
        self._planner.wiring.ensure_offsets(admin)
        # What is published here is not checked. If this process ends now, the next event of each aggregate sets its
        # number.
        sequences.reset(kafka, admin)
        # Before fencing, so that another recovery that has started meanwhile is not disturbed.
        self._require_unmoved(read_kafka_status(kafka).position)
        if self._ownership is not None:
            # Without a stored position no instance can run the pipeline. Taking ownership would look like a prior run:
            # if this process were killed now, a start would find it and begin as a first start.
            if self._plan.case.stored is not None and not self._ownership.taken:
                self._ownership.take()
            announce(kafka, "RECOVERING")
        try:
            recovered = self._run()
        except Fenced as error:
            # The other instance announces the state.
            raise Fenced(
                error.what,
                why="Another recovery or instance of this pipeline has started and continues.",
                remedy="Let it finish, then run `tailrace recover plan FILE`. Nothing is published twice.",
            ) from None
        except TailraceError as error:
            if self._ownership is not None:
                announce(kafka, "FAILED", error)
            raise
        finally:
            if self._ownership is not None:
                self._ownership.release()
        if recovered.complete and not self._plan.case.skips:
            rewind_marker.forget(kafka)
        if self._ownership is not None:
            announce(kafka, "STOPPED")
        return recovered

    def _run(self) -> RecoveryResult:
        refused = self._planner.wiring.refused
        resume = False
        while True:
            try:
                return self._attempt(self._row_filter, resume=resume)
            except RecordsRefused as found:
                if found.reasons.keys() <= refused.keys():
                    raise TopicRefused(found.what, why="; ".join(found.reasons.values())) from None
                # Dead-lettered in the next attempt. A position names the same row only if that attempt continues behind
                # this one.
                refused.update(found.reasons)
                self._require_not_fenced()
                resume = True
            except TopicLimitsChanged:
                self._require_not_fenced()
                resume = True
            except Unavailable:
                self._require_not_fenced()
                raise

    def _require_not_fenced(self) -> None:
        """Raises Fenced if another recovery took over: a producer that slept does not always learn that it was fenced.

        The other recovery may have finished and released its ownership; then the stored position shows it.
        """
        if self._ownership is None:
            return
        stored = read_kafka_status(self._planner.wiring.kafka).position
        if (self._ownership.taken and self._ownership.lost()) or (stored != self._plan.case.stored and streams(stored)):
            raise Fenced("this recovery was taken over, or the result of its last commit is not known")

    def _attempt(self, row_filter: RowFilter, *, resume: bool) -> RecoveryResult:
        wiring = self._planner.wiring
        admin = wiring.admin()
        publisher = wiring.publisher(admin, self._wakeup, lambda *_: None)
        source = self._planner.backend.source(
            self._plan.case.mark,
            row_filter.accept,
            self._wakeup,
            self._check_own_position if resume else self._begin,
            resume=resume,
        )
        pipeline = PipelineLoop(
            source,
            publisher,
            self._planner.processor,
            wakeup=self._wakeup,
            stopping=lambda: self._stopping() or _is_complete(publisher),
            parking=wiring.parking(admin),
        )
        begun: list[Position] = []
        try:
            pipeline.run(started=begun.append)
        finally:
            self._counts.update(published=publisher.published, dead_letters=publisher.dead_letters)
        return RecoveryResult(
            self._counts["published"],
            self._counts["dead_letters"],
            row_filter.tally,
            publisher.stored,
            bool(begun) and _is_complete(publisher),
        )

    def _begin(self, stored: Position | None) -> None:
        """Checks that nothing has changed since the plan, and reads Kafka again, when no other instance can publish."""
        self._require_unmoved(stored)
        if self._planner.index is not None:
            self._planner.index.read()

    def _check_own_position(self, stored: Position | None) -> None:
        """Checks that the stored position was written by this process: another recovery has its own mark."""
        if getattr(stored, "recovery", None) != self._plan.case.mark:
            raise Fenced("this recovery was taken over before a rejected record was dead-lettered")

    def _require_unmoved(self, stored: Position | None) -> None:
        if stored != self._plan.case.stored:
            raise ConfigError(
                f"the pipeline's position is {stored}, but was {self._plan.case.stored} when the plan was made",
                why="The pipeline ran meanwhile, or somebody else has recovered it.",
                remedy="Run `tailrace recover plan FILE` again.",
            )


def fence(wiring: Wiring, ownership: Ownership | None = None) -> None:
    """Aborts the open transaction of an instance that was killed, so that readers need not wait for its timeout.

    A running instance looks for a ownership when it is fenced, so the ownership is made first.
    """
    admin = wiring.admin()
    wiring.ensure_offsets(admin)
    if ownership is not None:
        ownership.take()
    # Not the publisher of the wiring, which would create missing topics; a missing topic must be noticed.
    publisher = Publisher(wiring.kafka, wiring.topic_manager(admin), StoredState(wiring.kafka), wakeup=Wakeup())
    try:
        publisher.open()
    finally:
        publisher.close()


def _is_complete(publisher: Publisher) -> bool:
    """Returns whether the recovery is done: its positions carry the mark, except the last one."""
    return publisher.stored is not None and streams(publisher.stored)


def recover(error: TailraceError, wiring: Wiring, wakeup: Wakeup, stopping: Callable[[], bool]) -> bool:
    """Recovers automatically. Returns whether the gap was closed, or False if a person must decide."""
    if not isinstance(error, RECOVERABLE) or isinstance(error, NOT_BY_ITSELF):
        return False
    log = StructuredLogger("tailrace.recovery", pipeline=wiring.settings.pipeline)
    planner = RecoveryPlanner(wiring)
    try:
        case = planner.case(error=error)
        if case.elsewhere or case.stored is None:
            return False
        announce(wiring.kafka, "RECOVERING", error)
        log.warning("recovering", error=error.code, what=error.what, why=error.why, lost=str(case.lost))
        fence(wiring)
        plan = planner.plan(case)
        done = RecoveryRun(planner, plan, wakeup=wakeup, stopping=stopping).run()
    finally:
        planner.close()
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
