"""One run of retention: reads rows that the pipeline has passed, judges them, and deletes those that nobody needs.

A row is deleted only if every condition of the policy holds. Each batch is one transaction with its record, so a run
can be killed at any moment, repeated, and run twice at once: nothing has to be finished or undone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Protocol

from tailrace import failpoints
from tailrace.archive.backend import Candidate
from tailrace.errors import Rejected
from tailrace.outbox.layouts import Layout
from tailrace.positions.base import Position
from tailrace.retention.consumers import UnreadEvents
from tailrace.retention.outbox import RetentionOutbox
from tailrace.retention.partitions import OldPartition, OutboxPartitions
from tailrace.retention.pinned_events import Pinned, PinnedEvents


class Kept(StrEnum):
    """Why a row stays. `changed` to `refused` are known only when it is to be deleted."""

    NOT_PUBLISHED = "not_published"
    TOO_YOUNG = "too_young"
    DEAD_LETTERED = Pinned.DEAD_LETTERED.value
    PARKED = Pinned.PARKED.value
    UNCERTAIN = Pinned.UNCERTAIN.value
    NOT_CONFIRMED = "not_confirmed"
    CONFIRMED_RECENTLY = "confirmed_recently"
    CONSUMER_BEHIND = "consumer_behind"
    PARTITION = "partition_not_complete"
    CHANGED = "changed"
    LOCKED = "locked"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The conditions as times in ms: rows created before `before_ms`, confirmed at or before `confirmed_ms`."""

    before_ms: int | None = None
    confirmed_ms: int | None = None
    batch_rows: int = 1000


@dataclass(slots=True)
class RetentionReport:
    """`rows` that may be deleted, or were; the times are those of their creation. `kept` counts others by reason."""

    rows: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    kept: Counter[str] = field(default_factory=Counter)
    consumers: Counter[str] = field(default_factory=Counter)
    """Rows by the first consumer that is behind."""
    partitions: list[str] = field(default_factory=list)
    in_outbox: int | None = None
    forgotten: int = 0
    notes: list[str] = field(default_factory=list)

    def count(self, created_ms: int) -> None:
        self.rows += 1
        if created_ms > 0:
            self.first_ms = created_ms if self.first_ms is None else min(self.first_ms, created_ms)
            self.last_ms = created_ms if self.last_ms is None else max(self.last_ms, created_ms)


class Confirmed(Protocol):
    def confirmed(self, ids: Sequence[str]) -> dict[str, int]:
        """Returns the times (ms) of the confirmed ones of `ids`."""


class RowJudge:
    """Decides for each row whether it may be deleted."""

    def __init__(
        self,
        policy: RetentionPolicy,
        layout: Layout,
        pinned: PinnedEvents,
        confirmed: Confirmed,
        consumers: UnreadEvents | None,
    ) -> None:
        self._policy = policy
        self._layout = layout
        self._pinned = pinned
        self._confirmed = confirmed
        self._consumers = consumers

    def judge(self, page: Sequence[Candidate], report: RetentionReport) -> list[tuple[Candidate, str]]:
        """Returns the rows that may be deleted, with their events; counts the others."""
        ids = [self._id(candidate) for candidate in page]
        times = {} if self._policy.confirmed_ms is None else self._confirmed.confirmed(ids)
        free: list[tuple[Candidate, str]] = []
        for candidate, event_id in zip(page, ids, strict=True):
            if (why := self._why(candidate, event_id, times)) is None:
                free.append((candidate, event_id))
                continue
            kept, _, consumer = why.partition(":")
            report.kept[kept] += 1
            if consumer:
                report.consumers[consumer] += 1
        return free

    def _id(self, candidate: Candidate) -> str:
        try:
            return self._layout.read(candidate.row).id
        except Rejected:
            return ""

    def _why(self, candidate: Candidate, event_id: str, times: dict[str, int]) -> str | None:
        policy = self._policy
        if (pinned := self._pinned.why(candidate.row, candidate.kept.created_ms)) is not None:
            return pinned.value
        if policy.confirmed_ms is not None:
            if event_id not in times:
                return Kept.NOT_CONFIRMED
            if times[event_id] > policy.confirmed_ms:
                return Kept.CONFIRMED_RECENTLY
        if self._consumers is not None and (consumer := self._consumers.behind(event_id)) is not None:
            return f"{Kept.CONSUMER_BEHIND.value}:{consumer}"
        return None


class RetentionRun:
    def __init__(
        self,
        outbox: RetentionOutbox,
        judge: RowJudge,
        policy: RetentionPolicy,
        start: Position,
        *,
        on_progress: Callable[[RetentionReport], None] = lambda _: None,
    ) -> None:
        """`start` shows which rows the pipeline has passed."""
        self._outbox = outbox
        self._judge = judge
        self._policy = policy
        self._start = start
        self._on_progress = on_progress
        self.report = RetentionReport()

    def plan(self) -> RetentionReport:
        """Returns what `apply` would do. Changes nothing."""
        policy, report = self._policy, self.report
        totals = self._outbox.totals(policy.before_ms)
        report.in_outbox = totals.rows
        for page in _pages(self._outbox.eligible(self._start, policy.before_ms), policy.batch_rows):
            for candidate, _ in self._judge.judge(page, report):
                report.count(candidate.kept.created_ms)
            self._on_progress(report)
        report.kept[Kept.TOO_YOUNG] += totals.young
        # Rows that the pipeline has not passed are not read at all.
        passed = report.rows + report.kept.total()
        report.kept[Kept.NOT_PUBLISHED] += max(0, totals.rows - passed)
        return report

    def apply(self) -> RetentionReport:
        policy, report = self._policy, self.report
        found = self._outbox.eligible(self._start, policy.before_ms, policy.confirmed_ms)
        for page in _pages(found, policy.batch_rows):
            if free := self._judge.judge(page, report):
                result = self._outbox.delete(
                    [candidate for candidate, _ in free], [event_id for _, event_id in free], self._start
                )
                self._count(free, result.deleted)
                report.kept[Kept.CHANGED] += result.changed
                report.kept[Kept.NOT_PUBLISHED] += result.later
                report.kept[Kept.LOCKED] += result.locked
                report.kept[Kept.REFUSED] += result.refused
                failpoints.reached(failpoints.RETENTION_COMMITTED)
            self._on_progress(report)
        return report

    def plan_partitions(self, partitions: OutboxPartitions, before_ms: int) -> RetentionReport:
        """Returns what `drop_partitions` would do. Changes nothing."""
        self.report.in_outbox = self._outbox.totals(None).rows
        for partition in partitions.old(before_ms):
            self._judge_partition(partitions, partition, drop=False)
        kept = self.report.in_outbox - self.report.rows - self.report.kept.total()
        self.report.kept[Kept.TOO_YOUNG] += max(0, kept)
        return self.report

    def drop_partitions(self, partitions: OutboxPartitions, before_ms: int) -> RetentionReport:
        for partition in partitions.old(before_ms):
            self._judge_partition(partitions, partition, drop=True)
            failpoints.reached(failpoints.RETENTION_COMMITTED)
        return self.report

    def _judge_partition(self, partitions: OutboxPartitions, partition: OldPartition, *, drop: bool) -> None:
        versions = partitions.versions(partition)
        mine = RetentionReport()
        free: list[tuple[str, int]] = []
        found = self._outbox.eligible(self._start, None, None, partition.oid)
        for page in _pages(found, self._policy.batch_rows):
            for candidate, event_id in self._judge.judge(page, mine):
                mine.count(candidate.kept.created_ms)
                free.append((event_id, candidate.kept.created_ms))
        mine.kept[Kept.NOT_PUBLISHED] += max(0, versions.rows - mine.rows - mine.kept.total())
        report = self.report
        complete = mine.rows == versions.rows
        if complete and drop:
            ids, created = [event_id for event_id, _ in free], [at_ms for _, at_ms in free]
            if not partitions.drop(partition, versions, ids, created):
                report.kept[Kept.LOCKED] += mine.rows
                report.notes.append(f"{partition.name} was changed or is in use: the next run tries it again")
                return
        if complete:
            report.partitions.append(partition.name)
            for _, at_ms in free:
                report.count(at_ms)
        else:
            report.kept.update(mine.kept)
            report.consumers.update(mine.consumers)
            report.kept[Kept.PARTITION] += mine.rows
        self._on_progress(report)

    def _count(self, free: Sequence[tuple[Candidate, str]], deleted: int) -> None:
        # Which rows of a batch stayed is not known, and the times are those of the batch then.
        for candidate, _ in free[:deleted]:
            self.report.count(candidate.kept.created_ms)


def _pages(found: Iterator[Candidate], size: int) -> Iterator[list[Candidate]]:
    while page := list(islice(found, size)):
        yield page
