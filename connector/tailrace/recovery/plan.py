"""Plans a recovery: what is wrong, what is known, and how large the gap is. Changes nothing and fences no instance.

The whole outbox is read once, and what Kafka holds of it. The same decisions are made again, row by row, when the plan
is applied, so that rows written meanwhile are included.
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
from tailrace.positions.base import Position, from_stored, is_streaming, to_stored
from tailrace.positions.postgres import LsnPosition
from tailrace.positions.recovery_mark import Recovery
from tailrace.recovery import backend as backends
from tailrace.recovery.backend import Backend
from tailrace.recovery.evidence import Evidence, first_read_before, streams
from tailrace.recovery.id_index import OwnerRules
from tailrace.recovery.published_index import PublishedIndex
from tailrace.recovery.row_filter import RowFilter
from tailrace.recovery.rules import DecisionRules, RecoveryTally, RowDecision
from tailrace.sources.mongo.options import MongoOptions
from tailrace.state import position_history, rewind_marker
from tailrace.state.rewind_marker import Rewind
from tailrace.state.stored_state import require_position_known
from tailrace.verify.backend import Window
from tailrace.verify.verification import open_outbox
from tailrace.worker.pipeline_topics import read_known
from tailrace.worker.wiring import Wiring

PUBLISHING_RATE = 5_000
"""Events per second that can certainly be published, for the estimated duration."""
CODES = {kind.__name__ for kind in backends.RECOVERABLE}


@dataclass(frozen=True, slots=True)
class Case:
    """The situation: the error a start would raise (None if it would continue). `lost` is the furthest position ever
    reached.
    """

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
        """Whether only one transaction of the log is lost, because it cannot be decoded."""
        return self.mark.skips


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The effect of applying the plan, and the rules for its decisions."""

    case: Case
    steps: list[str]
    rules: DecisionRules
    evidence: Evidence
    tally: RecoveryTally
    notes: list[str]
    read_whole: bool
    seconds: float
    order_by: tuple[str, ...] = ()

    @property
    def estimate(self) -> float:
        """Estimated duration in seconds; everything is read once more."""
        return self.seconds + self.tally.decisions[RowDecision.MISSED] / PUBLISHING_RATE


class RecoveryPlanner:
    """Examines a pipeline and its servers, and makes the plan."""

    def __init__(self, wiring: Wiring, *, since_ms: int | None = None) -> None:
        if since_ms is not None and wiring.database.timestamp is None and not is_mongo(wiring):
            raise ConfigError(
                "--since cannot be applied: the outbox has no column with the time of a row",
                why="It is compared with the time at which a row was created.",
                remedy="Name such a column in outbox.columns.timestamp, or omit --since.",
            )
        self.wiring = wiring
        self.processor = wiring.processor()
        self.backend = open_backend(wiring)
        self._since_ms = since_ms
        self.index: PublishedIndex | None = None

    def case(self, *, error: TailraceError | None = None) -> Case:
        """Returns what is wrong. `error` is the error of an earlier attempt, if it is known."""
        status = read_kafka_status(self.wiring.kafka)
        stored = status.position
        running = (
            derive_health(
                self.wiring.settings.pipeline,
                "mongo" if is_mongo(self.wiring) else "postgres",
                status,
                read_source_status(self.wiring.settings, stored),
                {},
            ).state
            == RUNNING
        )
        rewind = None if stored is None else rewind_marker.read(self.wiring.kafka)
        error = error or self._find_error(stored, rewind.until if rewind else None)
        fields = status.announced.get("error") or {}
        if error is None and status.announced.get("state") == "FAILED" and fields.get("code") in CODES:
            # The error occurs only while streaming, so the last announcement is valid until the pipeline runs again.
            error = ReportedError(fields)
        before = getattr(stored, "recovery", None)
        lost = from_stored(before.lost) if before and before.lost else None if before else furthest(stored, rewind)
        skips = before.skips if before else error is not None and error.code == UndecodableTransaction.__name__
        if skips and not before:
            lost = stored  # it is before the transaction, even if it was further once
        since_ms = self._since_ms if self._since_ms is not None else before.since_ms if before else None
        diverged = error is not None and error.code == LogDiverged.__name__
        mark = Recovery(
            before.id if before else uuid.uuid4().hex[:8],
            time.time_ns() // 1_000_000,
            None if lost is None else to_stored(lost),
            since_ms,
            skips,
            # Once the recovery has begun, the log has grown and the slot is new, so this can no longer be seen.
            went_back=diverged or (before is not None and before.went_back) or self.backend.went_back(lost),
        )
        elsewhere = stored is not None and self.backend.is_elsewhere(stored)
        return Case(error, stored, lost, mark, running, elsewhere)

    def plan(self, case: Case, *, on_progress: Callable[[int], None] = lambda _: None) -> RecoveryPlan:
        began = time.monotonic()
        if case.skips:
            self._skip_transaction(case.lost)
        steps = self.backend.steps(None if case.unfinished else case.lost)
        known = read_known(self.wiring.kafka)
        entries = known.entries
        rules = rules_of(case, entries, self.wiring.settings)
        evidence = self.backend.evaluate(entries, case.lost, rules.until_ms, went_back=case.mark.went_back)
        if case.skips:
            # Everything newer than the transaction that is neither on Kafka nor in the log belongs to it.
            rules = DecisionRules(since_ms=rules.since_ms, from_beginning=True)
        selected = first_read_before(case.mark, self.wiring.database) is not None
        rules = replace(rules, passed=evidence.passed, has_time_zone=self.backend.has_time_zone(), is_selected=selected)
        owner = OwnerRules(
            {name.encode() for name in known.elsewhere(case.stored or case.lost)},
            known.noted,
            known.of_others,
            self._furthest(case, rules),
        )
        self.index = PublishedIndex(
            self.wiring, self.processor, evidence, position_history.topic_ends(entries), known, owner
        )
        self.index.read()
        tally = self._read(case, rules, on_progress)
        return RecoveryPlan(
            case,
            steps,
            rules,
            evidence,
            tally,
            self._notes(case, evidence, rules),
            self.index.whole,
            time.monotonic() - began,
            getattr(self.backend, "order_by", self.wiring.database.order_by),
        )

    def _furthest(self, case: Case, rules: DecisionRules) -> Position | None:
        """Returns the position behind which this pipeline has certainly published nothing."""
        return case.lost if rules.at_end and self.wiring.kafka.exactly_once and streams(case.lost) else None

    def row_filter(
        self, case: Case, rules: DecisionRules, *, strict: bool, on_progress: Callable[[int], None]
    ) -> RowFilter:
        if self.index is None:
            raise RuntimeError("there is no plan")
        return RowFilter(
            self.processor,
            self.index,
            rules,
            self.wiring.kafka.dead_letter_topic,
            case.mark.went_back,
            strict,
            getattr(self.backend, "around", None),
            getattr(self.wiring.database, "is_marked", None),
            on_progress=on_progress,
        )

    def _skip_transaction(self, lost: Position | None) -> None:
        """Replaces the backend by one that skips a transaction that cannot be decoded."""
        from tailrace.recovery.skip_transaction import SkipBackend

        if isinstance(lost, LsnPosition) and not isinstance(self.wiring.database, MongoOptions):
            self.backend.close()
            self.backend = SkipBackend(self.wiring.database, lost, self.processor)

    def close(self) -> None:
        self.backend.close()
        if self.index is not None:
            self.index.close()

    def _find_error(self, stored: Position | None, until: Position | None) -> TailraceError | None:
        if stored is None and is_mongo(self.wiring):
            try:
                require_position_known(self.wiring.kafka, self.wiring.admin())
            except PositionForgotten as lost_notes:
                return lost_notes
        try:
            return self.backend.find_error(stored, until)
        except SlotBusy:
            return None

    def _read(self, case: Case, rules: DecisionRules, on_progress: Callable[[int], None]) -> RecoveryTally:
        row_filter = self.row_filter(case, rules, strict=False, on_progress=on_progress)
        there = self.backend.readable()
        if there is None:
            return row_filter.tally
        lost = case.lost
        outbox = open_outbox(
            replace(self.wiring, database=there),
            Window(),
            first_read_before(case.mark, there),
            complete=lost is None or is_streaming(lost),
        )
        try:
            for row, transaction, created_ms in outbox.rows():
                row_filter.accept(row, transaction, None if created_ms < 0 else created_ms)
        finally:
            outbox.close()
        return row_filter.tally

    def _notes(self, case: Case, evidence: Evidence, rules: DecisionRules) -> list[str]:
        notes: list[str] = []
        if rules.since_ms is None and evidence.passed is None and not is_mongo(self.wiring):
            notes.append(
                "no snapshot in the position history is still valid: rows are decided by the topics and by time"
            )
        if self.index is not None and self.index.compacted:
            kept = ", ".join(sorted(self.index.compacted))
            notes.append(f"{kept}: compacted, so an event that is not there may have been published nevertheless")
        if self.index is not None and self.index.keys_without_dead_letter:
            notes.append(self.index.keys_without_dead_letter)
        lost_notes = self.backend.lost_notes(case.lost)
        if case.mark.went_back and not lost_notes:
            lost_notes = [f"the server's log is not the one that was read: {backends.STAYS}"]
        return [*notes, *lost_notes]


class ReportedError(TailraceError):
    """An error that the pipeline has announced."""

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__(fields.get("what", ""), why=fields.get("why", ""), remedy=fields.get("remedy", ""))
        self._code = fields.get("code", "")

    @property
    def code(self) -> str:
        return self._code


def furthest(stored: Position | None, rewind: Rewind | None) -> Position | None:
    """Returns the furthest position ever reached: a rewound pipeline had published everything up to `until`."""
    if stored is None or rewind is None or not stored.is_alike(rewind.until):
        return stored
    return max(stored, rewind.until, key=lambda position: position.progress)


def rules_of(case: Case, entries: list[position_history.PositionEntry], settings: PipelineSettings) -> DecisionRules:
    """Returns the rules that are known before the position history is examined."""
    since_ms = case.mark.since_ms
    beginning = settings.source.start == "beginning"
    if case.lost is not None and not streams(case.lost):
        # Lost during the first read: all rows are wanted. Before that, the settings decide.
        return DecisionRules(since_ms=since_ms, from_beginning=beginning or not getattr(case.lost, "creating", False))
    noted = [entry.position for entry in entries if streams(entry.position)]
    if case.lost is not None:
        # An interrupted recovery has published events as well.
        begun = getattr(case.stored, "recovery", None) is not None
        at_end = not begun and all(position.progress <= case.lost.progress for position in noted)
        return DecisionRules(None, case.lost.at_ms or None, at_end and case.lost.at_ms > 0, since_ms, beginning)
    return DecisionRules(None, noted[-1].at_ms if noted else None, False, since_ms, beginning)


def open_backend(wiring: Wiring) -> Backend:
    if isinstance(wiring.database, MongoOptions):
        from tailrace.recovery.mongo_backend import MongoBackend  # optional driver

        return MongoBackend(wiring.database)
    from tailrace.recovery.postgres_backend import PostgresBackend

    return PostgresBackend(wiring.database)


def is_mongo(wiring: Wiring) -> bool:
    return isinstance(wiring.database, MongoOptions)
