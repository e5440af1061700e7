"""Tracks which fetched records were delivered to the projections, so that dropped ones are read again. Pure.

Records can be dropped between fetch and projection, above all by Faust, and silently: those of inactive partitions,
those that arrive while its flow is stopped, those of a cancelled call. So the log ranges that fetches return must
follow each other without a gap, and so must the delivered records.

Each seek starts a new **epoch** of its partitions. Records fetched in an older epoch are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tailrace.errors import RecordsDropped
from tailrace.projections.core.store import Partition

MAX_REREADS = 10
"""How often a partition is read again from the same offset because records were dropped; then the worker ends."""

TP = TypeVar("TP", bound=tuple[str, int])


class FetchedRange(NamedTuple):
    """The part of a partition's log that one fetch has read, from `start` to `end` without omission.

    Offsets in it without a record are transaction markers, aborted records or compacted ones. `previous_end` is the
    offset after the last record before this range in the same epoch, or where the epoch started.
    """

    epoch: int
    start: int
    previous_end: int
    end: int

    def previous_ends(self, offsets: Sequence[int]) -> dict[int, int]:
        """Maps each record's offset to the offset after the record before it."""
        return dict(zip(offsets, [self.previous_end, *(offset + 1 for offset in offsets)], strict=False))


class ReadProgress(NamedTuple):
    """How far a partition was read in an epoch that started at `start`.

    `delivered` is the offset after the last fetched record; `passed` is the offset up to which the log was read. The
    log between them holds only transaction markers and aborted records.
    """

    start: int
    delivered: int
    passed: int

    def committable(self, applied: int | None) -> int:
        """Returns the offset to commit to Kafka: `passed` if all delivered records are applied, else `applied`."""
        done = max(self.start, self.start if applied is None else applied)
        return max(done, self.passed) if done >= self.delivered else done


@dataclass(slots=True)
class _Epoch:
    """One partition since its last seek. `delivered` is the offset after the last record given to projections."""

    number: int
    progress: ReadProgress
    delivered: int
    missed: bool = False


class DeliveryTracker:
    """Tracks all partitions that are read: each starts with a seek, and all end when they are revoked."""

    def __init__(self) -> None:
        self._current: dict[tuple[str, int], _Epoch] = {}
        self._ended: dict[tuple[str, int], ReadProgress] = {}
        self._rereads: dict[tuple[str, int], tuple[int, int]] = {}

    def begin(self, starts: Mapping[TP, int], epoch: int) -> None:
        """Starts an epoch: nothing of an older one counts from now on."""
        self._current.update({tp: _Epoch(epoch, ReadProgress(at, at, at), at) for tp, at in starts.items()})

    def end(self) -> None:
        """Ignores all records from now on; `progress` stays known until `forget`."""
        self._ended = {tp: epoch.progress for tp, epoch in self._current.items()}
        self._current.clear()
        self._rereads.clear()

    def forget(self) -> None:
        self._ended.clear()

    def epoch(self, tp: tuple[str, int]) -> int | None:
        """Returns the number of a partition's current epoch."""
        return self._current[tp].number if tp in self._current else None

    def epochs(self, tps: Iterable[TP]) -> dict[TP, int]:
        return {tp: self._current[tp].number for tp in tps if tp in self._current}

    def progress(self, tp: tuple[str, int]) -> ReadProgress | None:
        return self._current[tp].progress if tp in self._current else self._ended.get(tp)

    def fetched(self, tp: tuple[str, int], fetched: FetchedRange, last: int | None) -> None:
        """Records that a fetch has read this range; `last` is the offset of its last record, if any."""
        epoch = self._current.get(tp)
        if epoch is None or fetched.epoch != epoch.number:
            return
        start, delivered, passed = epoch.progress
        if fetched.start != passed:
            epoch.missed = True  # the result of an earlier fetch was lost
        else:
            epoch.progress = ReadProgress(start, delivered if last is None else last + 1, fetched.end)

    def deliver(self, tp: tuple[str, int], number: int | None, previous_end: int | None, offset: int) -> bool:
        """Returns whether this record is the next to deliver; if so, it counts as delivered."""
        epoch = self._current.get(tp)
        if epoch is None or epoch.number != number or previous_end != epoch.delivered:
            return False
        epoch.delivered = offset + 1
        return True

    def missed(self, tp: tuple[str, int]) -> None:
        """Records that a projection got a record without its predecessor."""
        if tp in self._current:
            self._current[tp].missed = True

    def dropped(self, tps: Iterable[TP]) -> set[TP]:
        """Returns the partitions with dropped records. Call it while no fetched record is on its way."""
        found = {tp: self._current[tp] for tp in tps if tp in self._current}
        return {tp for tp, each in found.items() if each.missed or each.delivered < each.progress.delivered}

    def reread_from(self, tp: tuple[str, int], applied: int) -> int:
        """Returns where to read a partition again; `applied` is its next offset to apply. Raises after MAX_REREADS."""
        start = max(self._current[tp].progress.start, applied)
        offset, times = self._rereads.get(tp, (start, 0))
        times = times + 1 if offset == start else 1
        self._rereads[tp] = (start, times)
        if times > MAX_REREADS:
            raise RecordsDropped(
                f"{Partition(*tp)}: records from offset {start} on were fetched {times} times, and dropped each time",
                why="Something between the Kafka consumer and the projection drops them: this is a bug.",
                remedy="Restart: the stored position is before them, no event was skipped. Please report it.",
            )
        return start
