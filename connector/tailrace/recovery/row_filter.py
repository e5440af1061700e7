"""Lets through, of all rows of the outbox, what was missed: the judgement applied row by row, and counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tailrace.errors import RecoveryUncertain, Rejected
from tailrace.event import OutboxEvent, Row
from tailrace.pipeline.processor import EventProcessor
from tailrace.recovery.published_index import PublishedIndex, PublishedRecord
from tailrace.recovery.rules import REFUSED, DecisionRules, RecoveryTally, RowDecision, precedes
from tailrace.verify.verification import unreadable_name

_WRAP = 1 << 32
"""Rows have the lower 32 bits of a transaction's number."""


class SkippedTransaction(Protocol):
    """What is known of the log around a transaction that is skipped."""

    @property
    def xid(self) -> int: ...

    def brings(self, name: str, transaction: int) -> bool:
        """Whether the log brings the row of this name, written by this transaction (32 bits)."""


@dataclass(slots=True)
class RowFilter:
    """`restored`: the database went back in time, so ids may have been used twice. `strict`: what cannot be decided is
    an error. `around`: only one transaction was missed, and the log brings the others.
    """

    processor: EventProcessor
    seen: PublishedIndex
    ground: DecisionRules
    letters: str
    restored: bool = False
    strict: bool = False
    around: SkippedTransaction | None = None
    tally: RecoveryTally = field(default_factory=RecoveryTally)
    looked: Callable[[int], None] = lambda _: None

    def keeps(self, row: Row, transaction: int, created_ms: int | None) -> bool:
        """Whether it is to be published."""
        around = self.around
        if self.ground.has_passed(transaction) or (around is not None and precedes(transaction, around.xid)):
            self.tally.note(RowDecision.PASSED)
            self.looked(self.tally.rows)
            return False
        created_ms = self.ground.time_of(created_ms)
        event, name, type_name, topic = self._read(row)
        if around is not None and around.brings(name, transaction):
            fate = RowDecision.BROUGHT
        elif around is not None and transaction == around.xid % _WRAP:
            fate = RowDecision.PUBLISHED if self._is_there(event, self.seen.find(name, event)) else RowDecision.MISSED
        else:
            fate = self._fate(event, name, created_ms)
        self.tally.note(fate, name)
        if fate is RowDecision.MISSED:
            self.tally.note_missed(type_name, topic or self.letters, created_ms)
        elif self.strict and fate in REFUSED:
            raise undecided(self.tally, timed=created_ms is not None)
        self.looked(self.tally.rows)
        return fate is RowDecision.MISSED

    def _fate(self, event: OutboxEvent | None, name: str, created_ms: int | None) -> RowDecision:
        found = self.seen.find(name, event)
        if self._is_there(event, found):
            return RowDecision.PUBLISHED
        # If it is left out whatever the topics say, they need not be read any further for it.
        decided = self.ground.judge(created_ms, 0) in (RowDecision.EARLIER, RowDecision.OLDER)
        if not decided and not self.seen.suffices(created_ms):
            self.seen.deepen()
            found = self.seen.find(name, event)
            if self._is_there(event, found):
                return RowDecision.PUBLISHED
        fate = self.ground.judge(created_ms, self.seen.kept_since)
        if not found or fate is RowDecision.OLDER:
            return fate
        # Only other payloads were published under its id.
        if self.restored:
            return RowDecision.REUSED
        return fate if fate is RowDecision.EARLIER else RowDecision.UNTOLD

    def _is_there(self, event: OutboxEvent | None, found: list[PublishedRecord]) -> bool:
        return bool(found) and (event is None or not self.seen.differs(event, found))

    def _read(self, row: Row) -> tuple[OutboxEvent | None, str, str, str | None]:
        """The event, its name, its type and its topic; a row that cannot be read has the name of its letter."""
        try:
            event = self.processor.layout.read(row)
        except Rejected as rejected:
            return None, unreadable_name(self.processor, row, rejected), "?", None
        try:
            return event, event.id, event.type, self.processor.route(event).topic
        except Rejected:
            return event, event.id, event.type, None


def name_of(processor: EventProcessor, row: Row) -> str:
    """What its event is called on Kafka; a row that cannot be read has the name of its letter."""
    try:
        return processor.layout.read(row).id
    except Rejected as rejected:
        return unreadable_name(processor, row, rejected)


def undecided(tally: RecoveryTally, *, timed: bool = True) -> RecoveryUncertain:
    """The refusal to guess."""
    some = ", ".join(tally.examples[:3])
    if tally.fates[RowDecision.REUSED]:
        return RecoveryUncertain(
            f"{tally.fates[RowDecision.REUSED]:,} rows have ids under which other events were published ({some})",
            why="The database went back in time, or the collection was made anew, and these ids were given out once "
            "more. Consumers would take the rows for events that they know.",
            remedy="Give the rows ids that were never used, and move the sequence behind all that were published; then "
            "run it again.",
        )
    return RecoveryUncertain(
        f"of {tally.fates[RowDecision.UNTOLD]:,} rows it cannot be told whether they were published ({some})",
        why="They are not on Kafka, but the topics do not keep everything (retention, compaction, deleted topics), or "
        "they may be from before the pipeline's first start; and neither the ledger nor their time of creation decides "
        "it. Or their ids are on Kafka, but with other payloads, keys or types only, or another pipeline may have "
        "published them: the rows were changed since, or another pipeline or collection gives out the same ids. Or no "
        "history tells which topics the pipeline has written to.",
        remedy=(
            "Choose a moment before which everything was published: --since TIME leaves out the rows created before it."
            if timed
            else "Rows without a time cannot be judged: name a column in outbox.columns.timestamp, "
            "or give these rows a time in it."
        )
        + " A row whose id another event has needs one of its own.",
    )
