"""Notices a partition whose log goes on while nothing of it arrives, and a Kafka that says nothing of its logs. Pure.

A consumer that has stopped fetching looks like one that has nothing to fetch. Only the end of the log tells them apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from tailrace.errors import KafkaUnavailable, ProjectionError, ProjectionStalled
from tailrace.projections.core.store import Partition


class Backlog(NamedTuple):
    """A partition of which `reached` is the next offset to arrive, for so long, although its log ends at `end`."""

    reached: int
    end: int
    seconds: float


class StallDetector:
    """Of one worker. Time counts from look to look, at most `most` seconds each: a process may have been stopped."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._looked_at: float | None = None
        self._unanswered: float | None = None
        self._waiting: dict[Partition, Backlog] = {}

    def look(
        self,
        now: float,
        reached: Mapping[Partition, int],
        ends: Mapping[Partition, int] | None,
        busy: Collection[Partition],
    ) -> None:
        """`ends` is None if Kafka did not answer; `busy` have events that are not applied yet."""
        passed = min(now - self._looked_at, self._most) if self._looked_at is not None else 0.0
        self._looked_at = now
        if ends is None:
            self._unanswered = 0.0 if self._unanswered is None else self._unanswered + passed
            return
        self._unanswered = None
        before, self._waiting = self._waiting, {}
        for partition, end in ends.items():
            at = reached.get(partition, end)
            if at < end and partition not in busy:
                known = before.get(partition)
                since = known.seconds + passed if known is not None and known.reached == at else 0.0
                self._waiting[partition] = Backlog(at, end, since)

    def longest(self, partitions: Collection[Partition]) -> tuple[Partition | None, float]:
        """Of these, the one that has waited longest, and how long; None if it is Kafka's answer that is missing."""
        waited = {each: self._waiting[each].seconds for each in partitions if each in self._waiting}
        found = max(waited, key=waited.__getitem__, default=None)
        unanswered = (self._unanswered or 0.0) if partitions else 0.0
        if found is None or unanswered > waited[found]:
            return None, unanswered
        return found, waited[found]

    def stalled(
        self, projection: str, partitions: Collection[Partition], bound: float
    ) -> ProjectionError | KafkaUnavailable | None:
        """The error, if one of them has waited for longer than it may."""
        found, seconds = self.longest(partitions)
        if seconds <= bound:
            return None
        if found is None:
            return KafkaUnavailable(
                f"{projection}: for {seconds:.0f} s Kafka has not said where its partitions end",
                why="Nothing can be read from it.",
                remedy="Look at the brokers, then start again: nothing is lost.",
            )
        at, end, _ = self._waiting[found]
        return ProjectionStalled(
            f"{projection}: {found} ends at offset {end}, but for {seconds:.0f} s nothing has come from offset {at} on",
            why="The consumer no longer fetches what the log has.",
            remedy="Start again: it goes on where this one stopped. The log may say what happened before.",
        )
