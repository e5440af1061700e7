"""Detects workers that no longer make progress: no records, no commits, no partitions, or a blocked event loop.

A consumer that has stopped fetching looks like one that has nothing to fetch. Only the end of the log shows the
difference.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tailrace.errors import KafkaUnavailable, ProjectionError, ProjectionStalled
from tailrace.projections.core.partition_worker import PartitionWorker
from tailrace.projections.core.store import Partition

if TYPE_CHECKING:
    from tailrace.projections.projection import Projection

log = logging.getLogger("tailrace.projections")
WARN_SHARE = 0.5
"""The worker logs `unhealthy` after this share of `give_up`."""
STALLED_EXIT_CODE = 3
"""Of a process whose event loop is blocked."""


class Backlog(NamedTuple):
    """A partition whose next record, at offset `reached`, has not arrived for so long, though its log ends at `end`."""

    reached: int
    end: int
    seconds: float


class ProjectionStallDetector:
    """Compares what arrived with the ends of the logs.

    Time is counted from one look to the next, at most `max_step` seconds each: the process may have been suspended.
    """

    def __init__(self, max_step: float) -> None:
        self._max_step = max_step
        self._looked_at: float | None = None
        self._unanswered: float | None = None
        self._backlogs: dict[Partition, Backlog] = {}

    def look(
        self,
        now: float,
        reached: Mapping[Partition, int],
        ends: Mapping[Partition, int] | None,
        busy: Collection[Partition],
    ) -> None:
        """Takes the current offsets. `ends` is None if Kafka did not answer; `busy` have unapplied events."""
        passed = min(now - self._looked_at, self._max_step) if self._looked_at is not None else 0.0
        self._looked_at = now
        if ends is None:
            self._unanswered = 0.0 if self._unanswered is None else self._unanswered + passed
            return
        self._unanswered = None
        before, self._backlogs = self._backlogs, {}
        for partition, end in ends.items():
            at = reached.get(partition, end)
            if at < end and partition not in busy:
                known = before.get(partition)
                seconds = known.seconds + passed if known is not None and known.reached == at else 0.0
                self._backlogs[partition] = Backlog(at, end, seconds)

    def longest(self, partitions: Collection[Partition]) -> tuple[Partition | None, float]:
        """Returns the partition with the longest backlog and its seconds; None if it is Kafka that does not answer."""
        waited = {each: self._backlogs[each].seconds for each in partitions if each in self._backlogs}
        found = max(waited, key=waited.__getitem__, default=None)
        unanswered = (self._unanswered or 0.0) if partitions else 0.0
        if found is None or unanswered > waited[found]:
            return None, unanswered
        return found, waited[found]

    def stalled(
        self, projection: str, partitions: Collection[Partition], bound: float
    ) -> ProjectionError | KafkaUnavailable | None:
        """Returns an error if a partition has waited for longer than `bound` seconds."""
        found, seconds = self.longest(partitions)
        if seconds <= bound:
            return None
        if found is None:
            return KafkaUnavailable(
                f"{projection}: for {seconds:.0f} s Kafka has not said where its partitions end",
                why="Nothing can be read from it.",
                remedy="Check the brokers, then restart. No events were lost.",
            )
        at, end, _ = self._backlogs[found]
        return ProjectionStalled(
            f"{projection}: {found} ends at offset {end}, but for {seconds:.0f} s nothing has come from offset {at} on",
            why="The consumer no longer fetches what the log has.",
            remedy="Restart: it continues where it stopped. The log may show what happened before.",
        )

    def warn(self, projection: Projection, now: float, unsettled_since: float | None, warned: set[str]) -> None:
        """Logs once that a projection has made no progress for half the time after which the worker ends."""
        worker, seconds = slowest(projection.workers.values(), now)
        missing, waited = self.longest(projection.workers.keys())
        unsettled = now - unsettled_since if unsettled_since is not None else 0.0
        longest = max(seconds, waited, unsettled)
        if longest <= WARN_SHARE * projection.spec.settings.give_up:
            warned.discard(projection.name)
        elif projection.name not in warned:
            warned.add(projection.name)
            fields: dict[str, object] = {"projection": projection.name, "seconds": round(longest)}
            if worker is not None and seconds == longest:
                fields["partition"] = str(worker.partition)
            elif missing is not None and waited == longest:
                fields["partition"] = str(missing)
            log.warning("unhealthy", extra={"fields": fields})


def slowest(workers: Iterable[PartitionWorker], now: float) -> tuple[PartitionWorker | None, float]:
    """Returns the worker that has been busy longest without progress, and for how long."""
    found, longest = None, 0.0
    for worker in workers:
        if worker.busy_since is not None and now - worker.busy_since > longest:
            found, longest = worker, now - worker.busy_since
    return found, longest


def stalled(projection: Projection, now: float, unassigned_since: float | None) -> ProjectionStalled | None:
    """Returns an error if a projection makes no progress with its events, or gets no partitions, for too long."""
    bound = projection.spec.settings.give_up
    worker, seconds = slowest(projection.workers.values(), now)
    if worker is not None and seconds > bound + max(bound, projection.spec.settings.time_limit):
        return ProjectionStalled(
            f"{projection.name}: {worker.partition} has made no progress for {seconds:.0f} s at offset {worker.next}",
            why="A handler takes very long, or the store does not answer.",
            remedy="Check the handler and locks in its database. After a restart it continues where it stopped.",
        )
    if unassigned_since is not None and now - unassigned_since > bound:
        return ProjectionStalled(
            f"{projection.name}: no partitions to read for {now - unassigned_since:.0f} s",
            why="They were revoked and not assigned again, or Kafka does not say where they begin and end: it is"
            " unavailable, a partition has no leader, or the group keeps rebalancing.",
            remedy="Check the brokers and the other members of the group; then restart.",
        )
    return None


class ProjectionWatchdog:
    """Ends the process if its event loop is blocked for longer than `bound` seconds."""

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._last_beat = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last_beat = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _watch(self) -> None:
        pause = min(1.0, self._bound / 4)
        while True:
            slept_at = time.monotonic()
            if self._stop.wait(pause) or self._loop.is_closed():
                return
            if time.monotonic() - slept_at > pause + self._bound / 4:
                self._last_beat = time.monotonic()  # the whole process was suspended
            self._loop.call_soon_threadsafe(self._beat)
            if time.monotonic() - self._last_beat > self._bound:
                sys.stderr.write(
                    f"ProjectionStalled: the event loop has been blocked for more than {self._bound:.0f} s\n"
                    "  why:    A handler blocks it: it computes, or waits without `await`.\n"
                    "  remedy: Use an asynchronous client in handlers, or `await asyncio.to_thread(…)`.\n"
                )
                sys.stderr.flush()
                os._exit(STALLED_EXIT_CODE)

    def _beat(self) -> None:
        self._last_beat = time.monotonic()
