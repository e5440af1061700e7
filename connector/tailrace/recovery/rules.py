"""Decides which rows of the outbox were missed. Pure.

The rule behind every branch: a row that the pipeline had passed is never published again, a row that it had not passed
is never left out, and where neither is known, the row is undecided. The best evidence is Kafka: an event that is there
was published. Otherwise the position history may show that the pipeline had passed the row (a snapshot, Postgres only).
If not, the topic decides, as long as it keeps everything since then. Time decides the rest, with a wide margin.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.positions.first_read import UNCERTAIN
from tailrace.verify.backend import precedes

LONG_MS = 3_600_000
"""Where only the time of creation can decide, no transaction is expected to take longer than this."""
SKEW_MS = 60_000
"""The possible difference between the clock that gave a row its time and the clock of the database."""
EXAMPLES = 10


class RowDecision(StrEnum):
    """The decision about a row; only missed rows are published."""

    MISSED = "missed"
    PUBLISHED = "published"
    """On a topic, in the dead letters, or waiting behind a parked key."""
    PASSED = "passed"
    """A snapshot in the position history, or its delivery mark, shows that the pipeline had passed it."""
    EARLIER = "earlier"
    """Not on Kafka (any more), but created long before the log was lost."""
    OLDER = "older"
    """Created before the time given with --since."""
    LEFT_OUT = "left_out"
    """In the outbox before the first read, and left out by source.start_where."""
    BROUGHT = "brought"
    """The log contains it, next to a transaction that is skipped."""
    UNDECIDED = "untold"
    REUSED = "reused"
    """Its id was published before with another payload: after a restore, a sequence assigns ids again."""


REFUSED = (RowDecision.UNDECIDED, RowDecision.REUSED)


@dataclass(frozen=True, slots=True)
class DecisionRules:
    """The facts about the pipeline at the time its log was lost.

    `passed`: rows of transactions before this id (32 bits) were passed. `until_ms`: the source's clock at the last
    known position. `at_end`: nothing behind that was ever published. `since_ms`: given by a person, replaces both.
    `from_beginning`: rows from before the first start are published as well. `has_time_zone`: the time column has a
    time zone; otherwise its times cannot be compared. `is_selected`: source.start_where limited the first read, and
    rows are marked with what it did with them.
    """

    passed: int | None = None
    until_ms: int | None = None
    at_end: bool = False
    since_ms: int | None = None
    from_beginning: bool = False
    has_time_zone: bool = True
    is_selected: bool = False

    def time_of(self, created_ms: int | None) -> int | None:
        """Returns the time of creation if it is reliable."""
        return created_ms if self.has_time_zone or self.since_ms is not None else None

    def has_passed(self, transaction: int) -> bool:
        return self.passed is not None and self.since_ms is None and precedes(transaction, self.passed)

    def is_uncertain(self, transaction: int, created_ms: int | None) -> bool:
        """Returns whether the first read may have left out the row, so that only Kafka or a person can decide."""
        decided = self.since_ms is not None and created_ms is not None
        return self.is_selected and transaction == UNCERTAIN and not decided

    def decide(self, created_ms: int | None, kept_since: float) -> RowDecision:
        """Decides about a row that is neither on Kafka nor known to be passed.

        `kept_since`: the time since which its topic keeps everything, 0 for always.
        """
        if self.since_ms is not None and created_ms is not None:
            return RowDecision.OLDER if created_ms < self.since_ms else RowDecision.MISSED
        is_kept = kept_since == 0 or (created_ms is not None and created_ms >= kept_since)
        if self._is_long_before(created_ms) and not (self.from_beginning and is_kept):
            # With a snapshot, time does not decide: such a row took long to commit, or was changed since.
            return RowDecision.EARLIER if self.passed is None else RowDecision.UNDECIDED
        if self._may_precede_first_start(created_ms):
            return RowDecision.UNDECIDED
        return RowDecision.MISSED if is_kept or self._is_long_after(created_ms) else RowDecision.UNDECIDED

    def _is_long_before(self, created_ms: int | None) -> bool:
        known = self.since_ms is None and self.until_ms is not None and created_ms is not None
        return known and (created_ms or 0) < (self.until_ms or 0) - LONG_MS

    def _is_long_after(self, created_ms: int | None) -> bool:
        """Returns whether the row is behind everything that was ever published, so that retention does not matter."""
        known = self.at_end and self.until_ms is not None and created_ms is not None
        return known and (created_ms or 0) > (self.until_ms or 0) + SKEW_MS

    def _may_precede_first_start(self, created_ms: int | None) -> bool:
        """Returns whether the row may be from before the pipeline's first start and must not be published."""
        if self.from_beginning or (self.passed is not None and self.since_ms is None):
            return False
        return created_ms is None or (self.since_ms is None and self.until_ms is None)


@dataclass(slots=True)
class RecoveryTally:
    """Counts the decisions about all rows, for a report."""

    rows: int = 0
    decisions: Counter[RowDecision] = field(default_factory=Counter)
    missed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Missed rows by type and topic."""
    first_ms: int | None = None
    last_ms: int | None = None
    examples: list[str] = field(default_factory=list)
    """Names of undecided rows."""

    def note(self, decision: RowDecision, name: str = "") -> None:
        self.rows += 1
        self.decisions[decision] += 1
        if decision in REFUSED and len(self.examples) < EXAMPLES:
            self.examples.append(name)

    def note_missed(self, type_name: str, topic: str, created_ms: int | None) -> None:
        self.missed[type_name, topic] += 1
        if created_ms is not None:
            self.first_ms = created_ms if self.first_ms is None else min(self.first_ms, created_ms)
            self.last_ms = created_ms if self.last_ms is None else max(self.last_ms, created_ms)

    @property
    def undecided(self) -> int:
        return sum(self.decisions[decision] for decision in REFUSED)
