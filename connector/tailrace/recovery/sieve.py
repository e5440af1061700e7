"""Lets through, of all rows of the outbox, what was missed: the judgement applied row by row, and counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.errors import RecoveryUncertain, Rejected
from tailrace.event import OutboxEvent, Row
from tailrace.line import Line
from tailrace.recovery.judging import REFUSED, Fate, Ground, Tally
from tailrace.recovery.seen import Seen
from tailrace.verify.verifying import unreadable_name


@dataclass(slots=True)
class Sieve:
    """`restored`: the database went back in time, so ids may have been used twice. `strict`: what cannot be decided is
    an error.
    """

    line: Line
    seen: Seen
    ground: Ground
    letters: str
    restored: bool = False
    strict: bool = False
    tally: Tally = field(default_factory=Tally)
    looked: Callable[[int], None] = lambda _: None

    def keeps(self, row: Row, transaction: int, created_ms: int | None) -> bool:
        """Whether it is to be published."""
        if self.ground.has_passed(transaction):
            self.tally.note(Fate.PASSED)
            self.looked(self.tally.rows)
            return False
        event, name, type_name, topic = self._read(row)
        fate = self._fate(event, name, topic, created_ms)
        self.tally.note(fate, name)
        if fate is Fate.MISSED:
            self.tally.note_missed(type_name, topic or self.letters, created_ms)
        elif self.strict and fate in REFUSED:
            raise undecided(self.tally, timed=created_ms is not None)
        self.looked(self.tally.rows)
        return fate is Fate.MISSED

    def _fate(self, event: OutboxEvent | None, name: str, topic: str | None, created_ms: int | None) -> Fate:
        found = self.seen.find(name)
        # If it is left out whatever the topics say, they need not be read any further for it.
        decided = self.ground.judge(created_ms, 0) in (Fate.EARLIER, Fate.OLDER)
        if found is None and not decided and not self.seen.suffices(created_ms):
            self.seen.deepen()
            found = self.seen.find(name)
        if found is None:
            return self.ground.judge(created_ms, self.seen.kept_since(topic))
        if self.restored and event is not None and self.seen.differs(event, found):
            return Fate.REUSED
        return Fate.PUBLISHED

    def _read(self, row: Row) -> tuple[OutboxEvent | None, str, str, str | None]:
        """The event, its name, its type and its topic; a row that cannot be read has the name of its letter."""
        try:
            event = self.line.layout.read(row)
        except Rejected as rejected:
            return None, unreadable_name(self.line, row, rejected), "?", None
        try:
            return event, event.id, event.type, self.line.route(event).topic
        except Rejected:
            return event, event.id, event.type, None


def undecided(tally: Tally, *, timed: bool = True) -> RecoveryUncertain:
    """The refusal to guess."""
    some = ", ".join(tally.examples[:3])
    if tally.fates[Fate.REUSED]:
        return RecoveryUncertain(
            f"{tally.fates[Fate.REUSED]:,} rows have ids under which other events were published before ({some})",
            why="The database went back in time, and its sequence gave these ids out once more. Consumers would take "
            "the rows for events that they know.",
            remedy="Give the rows ids that were never used, and move the sequence behind all that were published; then "
            "run it again.",
        )
    return RecoveryUncertain(
        f"of {tally.fates[Fate.UNTOLD]:,} rows it cannot be told whether they were published ({some})",
        why="They are not on Kafka, but their topic does not keep everything (retention, compaction), or they may be "
        "from before the pipeline's first start; and neither the ledger nor their time of creation decides it.",
        remedy="Choose a moment before which everything was published: --since TIME leaves out the rows created "
        "before it."
        if timed
        else "Rows without a time cannot be judged: name a column in outbox.columns.timestamp, "
        "or give these rows a time in it.",
    )
