"""A plan carried out: by the pipeline's own line and publisher, so that events and position stay one transaction.

Whoever else would publish for this pipeline is fenced first. Only then is Kafka asked for the last time what it holds,
and nothing is changed in the database before that. Every position that is stored bears the recovery's mark until the
last row is out; the one behind it is where `tailrace run` goes on.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tailrace.errors import ConfigError, RecordsRefused, TailraceError, TopicRefused
from tailrace.kafka import rewinds
from tailrace.kafka.claim import Claim
from tailrace.kafka.publisher import Publisher
from tailrace.kafka.status import announce
from tailrace.pipeline import Pipeline
from tailrace.position import Position
from tailrace.recovery.evidence import streams
from tailrace.recovery.judging import Tally
from tailrace.recovery.planning import Plan, Survey
from tailrace.recovery.sieve import Sieve, undecided
from tailrace.wake import Wake
from tailrace.worker.assembly import Assembly


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was published, by type and topic in `tally`; not `complete` if it was stopped before the end."""

    published: int
    dead_letters: int
    tally: Tally
    position: Position | None
    complete: bool


class Applying:
    """One recovery. `claims`: whether it takes the pipeline over itself; a supervisor has done so already."""

    def __init__(
        self,
        survey: Survey,
        plan: Plan,
        *,
        wake: Wake,
        stopping: Callable[[], bool] = lambda: False,
        looked: Callable[[int], None] = lambda _: None,
        claims: bool = True,
    ) -> None:
        self._survey = survey
        self._plan = plan
        self._wake = wake
        self._stopping = stopping
        self._claim = Claim(survey.assembly.kafka, uuid.uuid4().hex) if claims else None
        self._sieve = survey.sieve(plan.case, plan.ground, strict=True, looked=looked)
        self._counts: Counter[str] = Counter()

    def run(self) -> Recovered:
        if self._plan.tally.undecided:
            raise undecided(self._plan.tally)
        kafka = self._survey.assembly.kafka
        admin = self._survey.assembly.admin()
        self._survey.assembly.ensure_offsets(admin)
        if self._claim is not None:
            # Without a stored position nobody can run it, and a claim would be a trace: were this killed now, a start
            # would find that, and begin as a first one does.
            if self._plan.case.stored is not None:
                self._claim.make()
            announce(kafka, "RECOVERING")
        try:
            recovered = self._run()
        except TailraceError as error:
            if self._claim is not None:
                announce(kafka, "FAILED", error)
            raise
        finally:
            if self._claim is not None:
                self._claim.release()
        if recovered.complete:
            rewinds.forget(kafka)
        if self._claim is not None:
            announce(kafka, "STOPPED")
        return recovered

    def _run(self) -> Recovered:
        refused = self._survey.assembly.refused
        resume = False
        while True:
            try:
                return self._attempt(self._sieve, resume=resume)
            except RecordsRefused as found:
                if found.places.keys() <= refused.keys():
                    raise TopicRefused(found.what, why="; ".join(found.places.values())) from None
                # Set aside in the next attempt: a place names the same row only if that goes on behind this one.
                refused.update(found.places)
                resume = True

    def _attempt(self, sieve: Sieve, *, resume: bool) -> Recovered:
        assembly = self._survey.assembly
        admin = assembly.admin()
        publisher = assembly.publisher(admin, self._wake, lambda *_: None)
        source = self._survey.site.source(
            self._plan.case.mark,
            sieve.keeps,
            self._wake,
            (lambda _: None) if resume else self._begin,
            resume=resume,
        )
        pipeline = Pipeline(
            source,
            publisher,
            self._survey.line,
            wake=self._wake,
            stopping=lambda: self._stopping() or _is_complete(publisher),
            parking=assembly.parking(admin),
        )
        begun: list[Position] = []
        try:
            pipeline.run(started=begun.append)
        finally:
            self._counts.update(published=publisher.published, dead_letters=publisher.dead_letters)
        return Recovered(
            self._counts["published"],
            self._counts["dead_letters"],
            sieve.tally,
            publisher.stored,
            bool(begun) and _is_complete(publisher),
        )

    def _begin(self, stored: Position | None) -> None:
        """Nobody else publishes any more: is all as it was when the plan was made, and what is on Kafka by now?"""
        if stored != self._plan.case.stored:
            raise ConfigError(
                f"the pipeline's position is {stored}, and was {self._plan.case.stored} when the plan was made",
                why="It ran meanwhile, or somebody else has recovered it.",
                remedy="Run `tailrace recover plan FILE` again.",
            )
        if self._survey.seen is not None:
            self._survey.seen.read()


def fence(assembly: Assembly) -> None:
    """Ends what an instance that was killed has left open: readers would have to wait for its timeout."""
    admin = assembly.admin()
    assembly.ensure_offsets(admin)
    # Not the assembly's own, which creates topics: one that is gone must be seen to be gone.
    publisher = Publisher(assembly.kafka, assembly.keeper(admin), wake=Wake())
    try:
        publisher.open()
    finally:
        publisher.close()


def _is_complete(publisher: Publisher) -> bool:
    """The first position that is stored is one with the mark; the last has none."""
    return publisher.stored is not None and streams(publisher.stored)
