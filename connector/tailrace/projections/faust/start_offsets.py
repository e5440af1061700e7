"""Where reading a partition begins, when it must not, and what Kafka is told about how far it has come. Pure.

The truth about a projection's progress is in its own database. Kafka's log moves on without asking it: retention may
delete what was not applied yet, and a topic may be deleted and made anew. Both are told, never skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from tailrace.errors import EventsLost, TopicReplaced
from tailrace.projections.core.store import Partition

Start = Literal["earliest", "latest"]


class StoredOffset(NamedTuple):
    """Where one reader of a partition stands: the next offset it has stored, and where it begins without one."""

    stored: int | None
    start: Start


class Guide(Protocol):
    """What the projections of an app tell its consumer. All of it is called in the app's event loop."""

    def owns(self, topic: str) -> bool:
        """Whether projections read this topic. Faust keeps no account of such a topic: acks of it mean nothing."""

    async def positions(self, partitions: Collection[Partition]) -> Mapping[Partition, Sequence[StoredOffset]]:
        """Where each reader of a partition stands. It may take its time: nothing is read meanwhile.

        Cancelled if the partitions are taken away before it returns; so is `assigned`.
        """

    async def assigned(self, starts: Mapping[Partition, Sequence[int]]) -> None:
        """Where each of them begins, in the order of `positions`; reading begins with the least.

        Called once after each assignment; no record of it comes before this has returned.
        """

    async def revoked(self) -> None:
        """The partitions are taken away, or the worker ends. No record comes any more. Workers end first."""

    def progress(self) -> Mapping[Partition, int]:
        """The next offsets that the store has committed. Asked before and after `revoked`, too."""


class Unguided:
    """The coordinator of an app without projections: it owns nothing, and so is asked nothing else."""

    def owns(self, topic: str) -> bool:
        return False

    async def positions(self, partitions: Collection[Partition]) -> Mapping[Partition, Sequence[StoredOffset]]:
        return {}

    async def assigned(self, starts: Mapping[Partition, Sequence[int]]) -> None:
        pass

    async def revoked(self) -> None:
        pass

    def progress(self) -> Mapping[Partition, int]:
        return {}


class PartitionBounds(NamedTuple):
    """What a partition holds: the offset of its first record, and the one behind its last stable record."""

    first: int
    end: int


def start_offset(partition: Partition, stored: int | None, bounds: PartitionBounds, start: Start) -> int:
    """Where reading begins; raises if it cannot begin there without a loss."""
    if stored is None:
        return bounds.first if start == "earliest" else bounds.end
    if stored < bounds.first:
        raise EventsLost(
            f"{partition} begins at offset {bounds.first}, but offset {stored} is the next to apply",
            why=f"Retention deleted {bounds.first - stored} offsets before their events were applied.",
            remedy="Publish them again from the outbox, or take the loss with `tailrace project APP --reset earliest`;"
            " then give the topic a longer retention.",
        )
    if stored > bounds.end:
        raise TopicReplaced(
            f"{partition} ends at offset {bounds.end}, but offset {stored} is the next to apply",
            why="The topic was deleted and made anew, lost records, or this is another cluster.",
            remedy="Check the broker's address. If the topic is new, begin again with"
            " `tailrace project APP --reset earliest`: events that were applied before are passed over.",
        )
    return stored


class FetchedRange(NamedTuple):
    """The part of a partition's log that one fetch has read, from `start` up to `end`, with nothing left out.

    Offsets in it that are no records are explained by the log: transaction markers, aborted records, compaction.
    `follows` is the offset behind the last record before it in the same reading, or where that reading began.
    """

    reading: int
    start: int
    follows: int
    end: int

    def chain(self, offsets: Sequence[int]) -> dict[int, int]:
        """For each of its records the offset behind the record before: between the two there is no other record."""
        return dict(zip(offsets, [self.follows, *(offset + 1 for offset in offsets)], strict=False))


class ReadProgress(NamedTuple):
    """How far the reading of a partition that began at `start` has come.

    `delivered` is the offset behind the last record that was handed over, `passed` the one up to which the log was
    looked at: transaction markers and aborted records are passed without being handed over.
    """

    start: int
    delivered: int
    passed: int

    def committable(self, progress: int | None) -> int:
        """What Kafka is told: beyond `progress` lies nothing to apply if all that was handed over is applied."""
        done = max(self.start, self.start if progress is None else progress)
        return max(done, self.passed) if done >= self.delivered else done
