"""Decides how often a record that its topic refuses is sent again, and when: by the settings of its row. Pure.

The pipeline starts again from the stored position after a refusal, so the row is read again, with its retry settings.
Then its record is sent once more if its delay has passed, or its event is dead-lettered. Attempts are counted in
memory: a process that is killed between two attempts begins to count again, and loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tailrace.backoff import Backoff
from tailrace.errors import Reason, RecordDelayed, Rejected
from tailrace.event import Columns, Row, redriven_position

MAX_PENDING = 10_000
MAX_ATTEMPTS = 1000
LONGEST_SECONDS = 3600.0
"""A row may not stop the pipeline for longer than this between two attempts."""


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns with a row's own retry settings; None if there is no such column."""

    attempts: str | None = None
    base_ms: str | None = None
    maximum_ms: str | None = None
    multiplier: str | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a record is sent, and the delays in between."""

    attempts: int = 1
    backoff: Backoff = field(default_factory=Backoff)

    def of_row(self, row: Row, columns: RowColumns) -> RetryPolicy:
        """Returns the policy with the row's own settings. Missing and unusable values change nothing."""
        found = _values(row.columns, row.values)
        backoff = self.backoff
        attempts = _number(found, columns.attempts, 1, MAX_ATTEMPTS)
        base = _number(found, columns.base_ms, 1, LONGEST_SECONDS * 1000)
        maximum = _number(found, columns.maximum_ms, 1, LONGEST_SECONDS * 1000)
        multiplier = _number(found, columns.multiplier, 1, 100)
        return RetryPolicy(
            self.attempts if attempts is None else int(attempts),
            replace(
                backoff,
                base=backoff.base if base is None else base / 1000,
                maximum=backoff.maximum if maximum is None else maximum / 1000,
                multiplier=backoff.multiplier if multiplier is None else multiplier,
            ),
        )


@dataclass(slots=True)
class _Refusal:
    why: str
    attempts: int
    not_before: float | None = None
    """When it is sent again, by the clock; None until its row is read."""
    given_up: bool = False
    """Whether its event is dead-lettered."""


class RecordRetries:
    """The records that were refused and are sent again. Used by one thread; lives as long as the process."""

    def __init__(self, policy: RetryPolicy, columns: RowColumns, *, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._columns = columns
        self._clock = clock
        self.pending: dict[str, _Refusal] = {}
        """Refused records by position."""

    def note(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Counts refusals. Returns those that are not retried: records of a redrive, which is run again by hand."""
        final: dict[str, str] = {}
        for position, why in reasons.items():
            # The record of a redrive is named twice: by its position and as a redrive.
            if position.endswith(redriven_position("")) or redriven_position(position) in reasons:
                final[position] = why
                continue
            before = self.pending.pop(position, None)
            while len(self.pending) >= MAX_PENDING:
                del self.pending[next(iter(self.pending))]
            self.pending[position] = _Refusal(why, 1 + (before.attempts if before else 0))
        return final

    def decide(self, rows: list[Row]) -> dict[str, Rejected]:
        """Returns which of the rows are dead-lettered; raises RecordDelayed if one has to wait before it is sent."""
        rejected: dict[str, Rejected] = {}
        longest = 0.0
        delayed: list[_Refusal] = []
        for row in rows:
            refusal = self.pending.get(row.position)
            if refusal is None:
                continue
            policy = self._policy.of_row(row, self._columns)
            if refusal.attempts >= policy.attempts:
                refusal.given_up = True
                rejected[row.position] = refused(refusal.why, refusal.attempts)
                continue
            if refusal.not_before is None:
                refusal.not_before = self._clock() + policy.backoff.delay(refusal.attempts)
            left = refusal.not_before - self._clock()
            if left > 0:
                longest = max(longest, left)
                delayed.append(refusal)
        if delayed:
            raise RecordDelayed(
                f"{len(delayed)} refused records are sent again in {longest:.1f} s: {delayed[0].why}",
                why=f"This was attempt {delayed[0].attempts}, and their rows or `retries` allow more. Later events "
                "wait, so that the order is kept.",
                remedy="Let the topic accept them meanwhile. After the last attempt they are dead-lettered.",
                seconds=longest,
            )
        return rejected

    def has_given_up(self, positions: Iterable[str]) -> bool:
        """Whether all these events are dead-lettered already, so that nothing more can be done about a refusal."""
        return all((refusal := self.pending.get(each)) is not None and refusal.given_up for each in positions)

    def of_waiting(self, position: str) -> Rejected | None:
        """Returns why an event behind a parked key is dead-lettered. It is not retried: its row is not read again."""
        refusal = self.pending.get(position)
        if refusal is None:
            return None
        refusal.given_up = True
        return refused(refusal.why)


def refused(why: str, attempts: int = 1) -> Rejected:
    """Returns the rejection of an event whose record was sent `attempts` times and refused each time."""
    remedy = "Make it smaller, or let the topic take it; then redrive."
    if attempts == 1:
        return Rejected(Reason.PERMANENT_FAILURE, why, remedy=remedy)
    return Rejected(Reason.MAX_RETRIES_EXCEEDED, f"refused {attempts} times: {why}", remedy=remedy)


def _values(columns: Columns, values: tuple[bytes | None, ...]) -> dict[str, bytes | None]:
    return {column.name: value for column, value in zip(columns, values, strict=False)}


def _number(found: dict[str, bytes | None], column: str | None, low: float, high: float) -> float | None:
    """Returns the value of a column within the bounds; None if there is none that is a positive number."""
    raw = found.get(column) if column else None
    try:
        number = float(raw) if raw is not None else math.nan
    except ValueError:
        return None
    return min(max(number, low), high) if 0 < number < math.inf else None
