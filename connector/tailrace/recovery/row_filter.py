"""Selects the rows of the outbox that were missed, and counts the decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tailrace.errors import RecoveryUncertain, Rejected
from tailrace.event import OutboxEvent, Row
from tailrace.pipeline.processor import EventProcessor
from tailrace.positions.first_read import LEFT_OUT
from tailrace.recovery.id_index import PublishedRecord
from tailrace.recovery.published_index import PublishedIndex
from tailrace.recovery.rules import REFUSED, DecisionRules, RecoveryTally, RowDecision
from tailrace.verify.backend import precedes
from tailrace.verify.outbox_rows import unreadable_name

_WRAP = 1 << 32
"""Rows store the lower 32 bits of a transaction id."""


class SkippedTransaction(Protocol):
    """A transaction that is skipped, and what the log contains around it."""

    @property
    def xid(self) -> int: ...

    def contains(self, name: str, transaction: int) -> bool:
        """Returns whether the log contains the row of this name, written by this transaction (32 bits)."""


@dataclass(slots=True)
class RowFilter:
    """`restored`: the database was restored, so ids may have been used twice. `strict`: an undecided row raises an
    error. `around`: only one transaction was missed, and the log contains the others. `is_marked`: whether the delivery
    mark of a row says that it was published.
    """

    processor: EventProcessor
    index: PublishedIndex
    rules: DecisionRules
    letters: str
    restored: bool = False
    strict: bool = False
    around: SkippedTransaction | None = None
    is_marked: Callable[[Row], bool] | None = None
    tally: RecoveryTally = field(default_factory=RecoveryTally)
    on_progress: Callable[[int], None] = lambda _: None

    def accept(self, row: Row, transaction: int, created_ms: int | None) -> bool:
        """Returns whether the row must be published."""
        around = self.around
        if self.rules.is_selected and transaction == LEFT_OUT:
            event, name, _, _ = self._read(row)
            # The predicate may have become false since, by a mark.
            is_published = self._is_published(event, self.index.find(name, event))
            return self._pass(RowDecision.PUBLISHED if is_published else RowDecision.LEFT_OUT)
        marked = self.is_marked is not None and self.rules.since_ms is None and self.is_marked(row)
        is_uncertain = self.rules.is_uncertain(transaction, self.rules.time_of(created_ms))
        has_passed = self.rules.has_passed(transaction) or (around is not None and precedes(transaction, around.xid))
        if marked or (has_passed and not is_uncertain):
            return self._pass(RowDecision.PASSED)
        created_ms = self.rules.time_of(created_ms)
        event, name, type_name, topic = self._read(row)
        if around is not None and around.contains(name, transaction):
            decision = RowDecision.BROUGHT
        elif is_uncertain:
            self.index.read_from_beginning()
            found = self.index.find(name, event)
            decision = RowDecision.PUBLISHED if self._is_published(event, found) else RowDecision.UNDECIDED
        elif around is not None and transaction == around.xid % _WRAP:
            decision = (
                RowDecision.PUBLISHED if self._is_published(event, self.index.find(name, event)) else RowDecision.MISSED
            )
        else:
            decision = self._decide(event, name, created_ms)
        self.tally.note(decision, name)
        if decision is RowDecision.MISSED:
            self.tally.note_missed(type_name, topic or self.letters, created_ms)
        elif self.strict and decision in REFUSED:
            raise undecided(self.tally, timed=created_ms is not None)
        self.on_progress(self.tally.rows)
        return decision is RowDecision.MISSED

    def _pass(self, decision: RowDecision) -> bool:
        self.tally.note(decision)
        self.on_progress(self.tally.rows)
        return False

    def _decide(self, event: OutboxEvent | None, name: str, created_ms: int | None) -> RowDecision:
        found = self.index.find(name, event)
        if self._is_published(event, found):
            return RowDecision.PUBLISHED
        # If the row is left out in any case, the topics need not be read any further.
        decided = self.rules.decide(created_ms, 0) in (RowDecision.EARLIER, RowDecision.OLDER)
        if not decided and not self.index.covers(created_ms):
            self.index.read_from_beginning()
            found = self.index.find(name, event)
            if self._is_published(event, found):
                return RowDecision.PUBLISHED
        decision = self.rules.decide(created_ms, self.index.kept_since)
        if not found or decision is RowDecision.OLDER:
            return decision
        # Only other payloads were published under its id.
        if self.restored:
            return RowDecision.REUSED
        return decision if decision is RowDecision.EARLIER else RowDecision.UNDECIDED

    def _is_published(self, event: OutboxEvent | None, found: list[PublishedRecord]) -> bool:
        return bool(found) and (event is None or not self.index.differs(event, found))

    def _read(self, row: Row) -> tuple[OutboxEvent | None, str, str, str | None]:
        """Returns event, name, type and topic; a row that cannot be decoded has the name of its dead letter."""
        try:
            event = self.processor.layout.read(row)
        except Rejected as rejected:
            return None, unreadable_name(self.processor, row, rejected), "?", None
        try:
            return event, event.id, event.type, self.processor.route(event).topic
        except Rejected:
            return event, event.id, event.type, None


def undecided(tally: RecoveryTally, *, timed: bool = True) -> RecoveryUncertain:
    """The error for rows that cannot be decided."""
    some = ", ".join(tally.examples[:3])
    if tally.decisions[RowDecision.REUSED]:
        return RecoveryUncertain(
            f"{tally.decisions[RowDecision.REUSED]:,} rows have ids under which other events were published ({some})",
            why="The database was restored or the collection was re-created, and these ids were assigned again. "
            "Consumers would take the rows for events that they know.",
            remedy="Give the rows ids that were never used, and advance the sequence behind all published ids. Then "
            "try again.",
        )
    return RecoveryUncertain(
        f"for {tally.decisions[RowDecision.UNDECIDED]:,} rows it is not known whether they were published ({some})",
        why="They are not on Kafka, but the topics do not keep everything (retention, compaction, deleted topics), or "
        "the rows may be from before the pipeline's first start; and neither the position history nor their time of "
        "creation decides it. Or their ids are on Kafka only with other payloads, keys or types, or another pipeline "
        "may have published them: the rows were changed since, or another pipeline or collection uses the same ids. "
        "Or it is not known which topics the pipeline has written to.",
        remedy=(
            "Choose a time before which everything was published: --since TIME leaves out the rows created before it."
            if timed
            else "Rows without a time cannot be decided: name a column in outbox.columns.timestamp, or give these "
            "rows a time in it."
        )
        + " If another event has the id of a row, give the row a new id.",
    )
