"""A plan carried out: by the pipeline's own line and publisher, so that events and position stay one transaction.

Whoever else would publish for this pipeline is fenced first. Only then is Kafka asked for the last time what it holds,
and nothing is changed in the database before that. Every position that is stored bears the recovery's mark until the
last row is out; the one behind it is where `tailrace run` goes on.
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
from tailrace.recovery.evidence import streams
from tailrace.recovery.plan import RecoveryPlan, RecoveryPlanner
from tailrace.recovery.row_filter import RowFilter, undecided
from tailrace.recovery.rules import RecoveryTally
from tailrace.state import rewind_marker
from tailrace.state.ownership import Ownership
from tailrace.state.status import announce
from tailrace.wakeup import Wakeup
from tailrace.worker.wiring import Wiring


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """What was published, by type and topic in `tally`; not `complete` if it was stopped before the end."""

    published: int
    dead_letters: int
    tally: RecoveryTally
    position: Position | None
    complete: bool


class RecoveryRun:
    """One recovery. `claim` is how it takes the pipeline over; a supervisor has done so already, and gives none."""

    def __init__(
        self,
        survey: RecoveryPlanner,
        plan: RecoveryPlan,
        *,
        wake: Wakeup,
        stopping: Callable[[], bool] = lambda: False,
        looked: Callable[[int], None] = lambda _: None,
        ownership: Ownership | None = None,
    ) -> None:
        self._survey = survey
        self._plan = plan
        self._wake = wake
        self._stopping = stopping
        self._ownership = ownership
        self._sieve = survey.sieve(plan.case, plan.ground, strict=True, looked=looked)
        self._counts: Counter[str] = Counter()

    def run(self) -> RecoveryResult:
        if self._plan.tally.undecided:
            raise undecided(self._plan.tally)
        kafka = self._survey.wiring.kafka
        admin = self._survey.wiring.admin()
        self._survey.wiring.ensure_offsets(admin)
        # Before anybody is fenced: another recovery that was begun meanwhile goes on with what it does.
        self._require_unmoved(read_kafka_status(kafka).position)
        if self._ownership is not None:
            # Without a stored position nobody can run it, and a claim would be a trace: were this killed now, a start
            # would find that, and begin as a first one does.
            if self._plan.case.stored is not None and not self._ownership.taken:
                self._ownership.take()
            announce(kafka, "RECOVERING")
        try:
            recovered = self._run()
        except Fenced as error:
            # The state is the other's to tell.
            raise Fenced(
                error.what,
                why="Another recovery or instance of this pipeline began meanwhile, and goes on with it.",
                remedy="Let it end, and see `tailrace recover plan FILE`. Nothing is published twice.",
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
        refused = self._survey.wiring.refused
        resume = False
        while True:
            try:
                return self._attempt(self._sieve, resume=resume)
            except RecordsRefused as found:
                if found.places.keys() <= refused.keys():
                    raise TopicRefused(found.what, why="; ".join(found.places.values())) from None
                # Set aside in the next attempt: a place names the same row only if that goes on behind this one.
                refused.update(found.places)
                # Before anybody is fenced: another recovery that was begun meanwhile goes on with what it does.
                self._step_aside()
                resume = True
            except TopicLimitsChanged:
                self._step_aside()
                resume = True
            except Unavailable:
                self._step_aside()
                raise

    def _step_aside(self) -> None:
        """What looks like an outage may be another recovery: a producer that slept does not always hear of its fence.

        By now the other may be done, and its claim given back: then the position tells.
        """
        if self._ownership is None:
            return
        stored = read_kafka_status(self._survey.wiring.kafka).position
        if (self._ownership.taken and self._ownership.lost()) or (stored != self._plan.case.stored and streams(stored)):
            raise Fenced("this recovery was taken over, or its last commit was not heard of")

    def _attempt(self, sieve: RowFilter, *, resume: bool) -> RecoveryResult:
        wiring = self._survey.wiring
        admin = wiring.admin()
        publisher = wiring.publisher(admin, self._wake, lambda *_: None)
        source = self._survey.site.source(
            self._plan.case.mark,
            sieve.keeps,
            self._wake,
            self._go_on if resume else self._begin,
            resume=resume,
        )
        pipeline = PipelineLoop(
            source,
            publisher,
            self._survey.processor,
            wake=self._wake,
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
            sieve.tally,
            publisher.stored,
            bool(begun) and _is_complete(publisher),
        )

    def _begin(self, stored: Position | None) -> None:
        """Nobody else publishes any more: is all as it was when the plan was made, and what is on Kafka by now?"""
        self._require_unmoved(stored)
        if self._survey.seen is not None:
            self._survey.seen.read()

    def _go_on(self, stored: Position | None) -> None:
        """Behind what this process has stored, and nobody else: one that took over has a mark of its own, if with the
        same id. What it published has not been seen here.
        """
        if getattr(stored, "recovery", None) != self._plan.case.mark:
            raise Fenced("this recovery was taken over while a record that was refused was to be set aside")

    def _require_unmoved(self, stored: Position | None) -> None:
        if stored != self._plan.case.stored:
            raise ConfigError(
                f"the pipeline's position is {stored}, and was {self._plan.case.stored} when the plan was made",
                why="It ran meanwhile, or somebody else has recovered it.",
                remedy="Run `tailrace recover plan FILE` again.",
            )


def fence(wiring: Wiring, ownership: Ownership | None = None) -> None:
    """Ends what an instance that was killed has left open: readers would have to wait for its timeout.

    One that lives looks for a claim when it hears of the fence, so that is made first.
    """
    admin = wiring.admin()
    wiring.ensure_offsets(admin)
    if ownership is not None:
        ownership.take()
    # Not the assembly's own, which creates topics: one that is gone must be seen to be gone.
    publisher = Publisher(wiring.kafka, wiring.topic_manager(admin), wake=Wakeup())
    try:
        publisher.open()
    finally:
        publisher.close()


def _is_complete(publisher: Publisher) -> bool:
    """The first position that is stored is one with the mark; the last has none."""
    return publisher.stored is not None and streams(publisher.stored)
