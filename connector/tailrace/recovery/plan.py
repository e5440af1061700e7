"""The plan of a recovery: what is wrong, what is known, and how large the gap is. Changes nothing, fences nobody.

The whole outbox is read once, and what Kafka holds of it. The same judgement is made again, row by row, when the plan
is applied: rows that come meanwhile are then in it, too.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from tailrace.check.health import RUNNING, derive_health, read_kafka_status, read_source_status
from tailrace.config.model import PipelineSettings
from tailrace.errors import (
    ConfigError,
    LogDiverged,
    PositionForgotten,
    RecoveryUnfinished,
    SlotBusy,
    TailraceError,
    UndecodableTransaction,
)
from tailrace.positions.base import Position, from_stored, to_stored
from tailrace.positions.postgres import LsnPosition
from tailrace.positions.recovery_mark import Recovery
from tailrace.recovery import backend as sites
from tailrace.recovery.backend import Backend
from tailrace.recovery.evidence import Evidence, streams
from tailrace.recovery.published_index import PublishedIndex
from tailrace.recovery.record_owner import OwnerRules
from tailrace.recovery.row_filter import RowFilter
from tailrace.recovery.rules import DecisionRules, RecoveryTally, RowDecision
from tailrace.sources.mongo.options import MongoOptions
from tailrace.state import position_history, rewind_marker
from tailrace.state.prior_run import require_position_known
from tailrace.state.rewind_marker import Rewind
from tailrace.verify.backend import Window
from tailrace.verify.verification import open_outbox
from tailrace.worker.pipeline_topics import read_known
from tailrace.worker.wiring import Wiring

PUBLISHING_RATE = 5_000
"""Events a second that are surely published, for a word on how long it takes."""
CODES = {kind.__name__ for kind in sites.RECOVERABLE}


@dataclass(frozen=True, slots=True)
class Case:
    """What a start would end with: nothing if it would go on. `lost` is how far the pipeline ever was."""

    error: TailraceError | None
    stored: Position | None
    lost: Position | None
    mark: Recovery
    running: bool = False
    elsewhere: bool = False

    @property
    def unfinished(self) -> bool:
        return isinstance(self.error, RecoveryUnfinished)

    @property
    def skips(self) -> bool:
        """Whether the log is as it was but for one transaction, which cannot be decoded."""
        return self.mark.skips


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What applying it would do, and on what ground."""

    case: Case
    steps: list[str]
    ground: DecisionRules
    evidence: Evidence
    tally: RecoveryTally
    notes: list[str]
    read_whole: bool
    seconds: float
    order_by: tuple[str, ...] = ()

    @property
    def estimate(self) -> float:
        """Seconds that applying it takes, about: all is read once more."""
        return self.seconds + self.tally.fates[RowDecision.MISSED] / PUBLISHING_RATE


class RecoveryPlanner:
    """A pipeline and its servers, looked at for a recovery."""

    def __init__(self, wiring: Wiring, *, since_ms: int | None = None) -> None:
        if since_ms is not None and wiring.database.timestamp is None and not is_mongo(wiring):
            raise ConfigError(
                "--since cannot be applied: the outbox has no column with the time of a row",
                why="It is compared with when a row was created.",
                remedy="Name such a column in outbox.columns.timestamp, or leave --since out.",
            )
        self.wiring = wiring
        self.processor = wiring.processor()
        self.site = open_backend(wiring)
        self._since_ms = since_ms
        self.seen: PublishedIndex | None = None

    def case(self, *, error: TailraceError | None = None) -> Case:
        """What is wrong now; `error` is what an attempt has ended with, if that is known."""
        news = read_kafka_status(self.wiring.kafka)
        stored = news.position
        running = (
            derive_health(
                self.wiring.settings.pipeline,
                "mongo" if is_mongo(self.wiring) else "postgres",
                news,
                read_source_status(self.wiring.settings, stored),
                {},
            ).state
            == RUNNING
        )
        rewind = None if stored is None else rewind_marker.read(self.wiring.kafka)
        error = error or self._trouble(stored, rewind.until if rewind else None)
        told = news.announced.get("error") or {}
        if error is None and news.announced.get("state") == "FAILED" and told.get("code") in CODES:
            # It showed only while streaming: what the pipeline itself said last is true until it runs again.
            error = TailraceErrorTold(told)
        before = getattr(stored, "recovery", None)
        lost = from_stored(before.lost) if before and before.lost else None if before else furthest(stored, rewind)
        skips = before.skips if before else error is not None and error.code == UndecodableTransaction.__name__
        if skips and not before:
            lost = stored  # it stands before the transaction, also if it was further once
        since_ms = self._since_ms if self._since_ms is not None else before.since_ms if before else None
        diverged = error is not None and error.code == LogDiverged.__name__
        mark = Recovery(
            before.id if before else uuid.uuid4().hex[:8],
            time.time_ns() // 1_000_000,
            None if lost is None else to_stored(lost),
            since_ms,
            skips,
            # Once it has begun, a log that has grown, and the new slot, no longer show it.
            went_back=diverged or (before is not None and before.went_back) or self.site.went_back(lost),
        )
        elsewhere = stored is not None and self.site.is_elsewhere(stored)
        return Case(error, stored, lost, mark, running, elsewhere)

    def plan(self, case: Case, *, looked: Callable[[int], None] = lambda _: None) -> RecoveryPlan:
        began = time.monotonic()
        if case.skips:
            self._stand_before(case.lost)
        steps = self.site.steps(None if case.unfinished else case.lost)
        known = read_known(self.wiring.kafka)
        entries = known.entries
        ground = ground_of(case, entries, self.wiring.settings)
        evidence = self.site.weigh(entries, case.lost, ground.until_ms, went_back=case.mark.went_back)
        if case.skips:
            # Whatever is newer than the transaction, not on Kafka and not in the log, is of that transaction.
            ground = DecisionRules(since_ms=ground.since_ms, from_beginning=True)
        ground = replace(ground, passed=evidence.passed, zoned=self.site.is_zoned())
        whose = OwnerRules(
            {name.encode() for name in known.elsewhere(case.stored or case.lost)},
            known.noted,
            known.of_others,
            self._furthest(case, ground),
        )
        self.seen = PublishedIndex(
            self.wiring, self.processor, evidence, position_history.topic_ends(entries), known, whose
        )
        self.seen.read()
        tally = self._read(case, ground, looked)
        return RecoveryPlan(
            case,
            steps,
            ground,
            evidence,
            tally,
            self._notes(case, evidence, ground),
            self.seen.whole,
            time.monotonic() - began,
            getattr(self.site, "order_by", self.wiring.database.order_by),
        )

    def _furthest(self, case: Case, ground: DecisionRules) -> Position | None:
        """The position behind which this pipeline has certainly published nothing."""
        return case.lost if ground.at_end and self.wiring.kafka.exactly_once and streams(case.lost) else None

    def sieve(self, case: Case, ground: DecisionRules, *, strict: bool, looked: Callable[[int], None]) -> RowFilter:
        if self.seen is None:
            raise RuntimeError("there is no plan")
        return RowFilter(
            self.processor,
            self.seen,
            ground,
            self.wiring.kafka.dead_letter_topic,
            case.mark.went_back,
            strict,
            getattr(self.site, "around", None),
            looked=looked,
        )

    def _stand_before(self, lost: Position | None) -> None:
        """Before a transaction that cannot be decoded, and that is to be skipped."""
        from tailrace.recovery.skip_transaction import SkipBackend

        if isinstance(lost, LsnPosition) and not isinstance(self.wiring.database, MongoOptions):
            self.site.close()
            self.site = SkipBackend(self.wiring.database, lost, self.processor)

    def close(self) -> None:
        self.site.close()
        if self.seen is not None:
            self.seen.close()

    def _trouble(self, stored: Position | None, until: Position | None) -> TailraceError | None:
        if stored is None and is_mongo(self.wiring):
            try:
                require_position_known(self.wiring.kafka, self.wiring.admin())
            except PositionForgotten as forgotten:
                return forgotten
        try:
            return self.site.trouble(stored, until)
        except SlotBusy:
            return None

    def _read(self, case: Case, ground: DecisionRules, looked: Callable[[int], None]) -> RecoveryTally:
        sieve = self.sieve(case, ground, strict=False, looked=looked)
        there = self.site.readable()
        if there is None:
            return sieve.tally
        outbox = open_outbox(replace(self.wiring, database=there), Window())
        try:
            for row, transaction, created_ms in outbox.rows():
                sieve.keeps(row, transaction, None if created_ms < 0 else created_ms)
        finally:
            outbox.close()
        return sieve.tally

    def _notes(self, case: Case, evidence: Evidence, ground: DecisionRules) -> list[str]:
        notes: list[str] = []
        if ground.since_ms is None and evidence.passed is None and not is_mongo(self.wiring):
            notes.append("the ledger has no snapshot that still holds: rows are told apart by the topics and by time")
        if self.seen is not None and self.seen.compacted:
            kept = ", ".join(sorted(self.seen.compacted))
            notes.append(f"{kept}: compacted, so an event that is not there may have been published all the same")
        if self.seen is not None and self.seen.lost_fronts:
            notes.append(self.seen.lost_fronts)
        forgotten = self.site.forgotten(case.lost)
        if case.mark.went_back and not forgotten:
            forgotten = [f"the server's log is not the one that was read: {sites.STAYS}"]
        return [*notes, *forgotten]


class TailraceErrorTold(TailraceError):
    """An error as the pipeline announced it."""

    def __init__(self, told: dict[str, str]) -> None:
        super().__init__(told.get("what", ""), why=told.get("why", ""), remedy=told.get("remedy", ""))
        self._code = told.get("code", "")

    @property
    def code(self) -> str:
        return self._code


def furthest(stored: Position | None, rewind: Rewind | None) -> Position | None:
    """How far the pipeline ever was: one that was set back had published what lies up to `until`, too."""
    if stored is None or rewind is None or not stored.is_alike(rewind.until):
        return stored
    return max(stored, rewind.until, key=lambda position: position.progress)


def ground_of(case: Case, entries: list[position_history.PositionEntry], settings: PipelineSettings) -> DecisionRules:
    """What is known before the ledger's snapshots are weighed."""
    since_ms = case.mark.since_ms
    beginning = settings.source.start == "beginning"
    if case.lost is not None and not streams(case.lost):
        # Lost while its first rows were read: all of them are wanted. Before that, as the settings say.
        return DecisionRules(since_ms=since_ms, from_beginning=beginning or not getattr(case.lost, "creating", False))
    noted = [entry.position for entry in entries if streams(entry.position)]
    if case.lost is not None:
        # A recovery that was killed has published, too.
        begun = getattr(case.stored, "recovery", None) is not None
        at_end = not begun and all(position.progress <= case.lost.progress for position in noted)
        return DecisionRules(None, case.lost.at_ms or None, at_end and case.lost.at_ms > 0, since_ms, beginning)
    return DecisionRules(None, noted[-1].at_ms if noted else None, False, since_ms, beginning)


def open_backend(wiring: Wiring) -> Backend:
    if isinstance(wiring.database, MongoOptions):
        from tailrace.recovery.mongo_backend import MongoBackend  # its driver is only there for those who need it

        return MongoBackend(wiring.database)
    from tailrace.recovery.postgres_backend import PostgresBackend

    return PostgresBackend(wiring.database)


def is_mongo(wiring: Wiring) -> bool:
    return isinstance(wiring.database, MongoOptions)
