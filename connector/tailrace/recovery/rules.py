"""Which rows of the outbox were missed, and which were published before? Pure.

The rule behind every branch: a row that the pipeline had passed is never published again, one that it had not is never
left out, and where neither is known, that is said. Best is what Kafka holds: an event that is there was published.
Of one that is not there, the ledger may know that the pipeline had passed it (a snapshot, Postgres only); if not, its
topic tells, as long as that keeps everything since then; and time tells the rest, with a wide margin.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

LONG_MS = 3_600_000
"""A transaction that takes longer than this is not thought of, where only the time of a row's creation can tell."""
SKEW_MS = 60_000
"""What may lie between the clock that gave a row its time and the database's own."""
EXAMPLES = 10
_HALF = 1 << 31
_NORMAL = 3
"""Smaller numbers stand for transactions older than any other."""


class RowDecision(StrEnum):
    """What is to become of a row: only what was missed is published."""

    MISSED = "missed"
    PUBLISHED = "published"
    """On a topic, among the dead letters, or waiting behind a parked key."""
    PASSED = "passed"
    """Known to have been passed before: the ledger has a snapshot that shows it."""
    EARLIER = "earlier"
    """Not there (any more), but created long before the place where the log was lost."""
    OLDER = "older"
    """Created before the time that a person gave."""
    BROUGHT = "brought"
    """The log brings it: beside a transaction that is skipped."""
    UNTOLD = "untold"
    REUSED = "reused"
    """Its id was published before, with another payload: after a restore a sequence begins again where it was."""


REFUSED = (RowDecision.UNTOLD, RowDecision.REUSED)


@dataclass(frozen=True, slots=True)
class DecisionRules:
    """What is known of the pipeline when its log was lost.

    `passed`: the number (32 bits) of a transaction; rows of older ones were passed. `until_ms`: the source's clock at
    the last known position; `at_end`: nothing behind that was ever published. `since_ms`: a person's word, which
    replaces both. `from_beginning`: the pipeline publishes all rows, those from before its first start too. `zoned`:
    the column with a row's time knows what moment that is; without a zone, or with the day alone, it does not.
    """

    passed: int | None = None
    until_ms: int | None = None
    at_end: bool = False
    since_ms: int | None = None
    from_beginning: bool = False
    zoned: bool = True

    def time_of(self, created_ms: int | None) -> int | None:
        """When a row was created, as far as that can be relied on."""
        return created_ms if self.zoned or self.since_ms is not None else None

    def has_passed(self, transaction: int) -> bool:
        return self.passed is not None and self.since_ms is None and precedes(transaction, self.passed)

    def judge(self, created_ms: int | None, kept_since: float) -> RowDecision:
        """Of a row that is not on Kafka, nor known to be passed. `kept_since`: since when its topic keeps everything,
        0 for always.
        """
        if self.since_ms is not None and created_ms is not None:
            return RowDecision.OLDER if created_ms < self.since_ms else RowDecision.MISSED
        vouched = kept_since == 0 or (created_ms is not None and created_ms >= kept_since)
        if self._long_before(created_ms) and not (self.from_beginning and vouched):
            # With a snapshot at hand, time does not decide: such a row took long to be committed, or was changed since.
            return RowDecision.EARLIER if self.passed is None else RowDecision.UNTOLD
        if self._begins_later(created_ms):
            return RowDecision.UNTOLD
        return RowDecision.MISSED if vouched or self._long_after(created_ms) else RowDecision.UNTOLD

    def _long_before(self, created_ms: int | None) -> bool:
        known = self.since_ms is None and self.until_ms is not None and created_ms is not None
        return known and (created_ms or 0) < (self.until_ms or 0) - LONG_MS

    def _long_after(self, created_ms: int | None) -> bool:
        """Behind all that was ever published: then no topic need vouch for it."""
        known = self.at_end and self.until_ms is not None and created_ms is not None
        return known and (created_ms or 0) > (self.until_ms or 0) + SKEW_MS

    def _begins_later(self, created_ms: int | None) -> bool:
        """Whether the row may be from before the pipeline's first start, so that it is not to be published at all."""
        if self.from_beginning or (self.passed is not None and self.since_ms is None):
            return False
        return created_ms is None or (self.since_ms is None and self.until_ms is None)


def precedes(transaction: int, other: int) -> bool:
    """Whether a transaction is older than another; both have only their lower 32 bits.

    A row that was frozen two billion transactions ago may seem newer: then its topic tells.
    """
    return transaction < _NORMAL or (transaction - other) % (1 << 32) >= _HALF


@dataclass(slots=True)
class RecoveryTally:
    """What was found of all rows, for a report."""

    rows: int = 0
    fates: Counter[RowDecision] = field(default_factory=Counter)
    missed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By type and topic."""
    first_ms: int | None = None
    last_ms: int | None = None
    examples: list[str] = field(default_factory=list)
    """Names of rows that cannot be decided."""

    def note(self, fate: RowDecision, name: str = "") -> None:
        self.rows += 1
        self.fates[fate] += 1
        if fate in REFUSED and len(self.examples) < EXAMPLES:
            self.examples.append(name)

    def note_missed(self, type_name: str, topic: str, created_ms: int | None) -> None:
        self.missed[type_name, topic] += 1
        if created_ms is not None:
            self.first_ms = created_ms if self.first_ms is None else min(self.first_ms, created_ms)
            self.last_ms = created_ms if self.last_ms is None else max(self.last_ms, created_ms)

    @property
    def undecided(self) -> int:
        return sum(self.fates[fate] for fate in REFUSED)
