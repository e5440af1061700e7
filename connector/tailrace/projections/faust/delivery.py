"""What was fetched of each partition, and what of it was handed to the projections: whatever is missing is read again.

Between the fetch and the projection records can be dropped, by Faust above all, which does it without a word: those of
partitions that are not active, those that come while its flow is stopped, those of a call that was cancelled. So the
stretches of log that fetches return must follow each other without a gap, and so must the records that are handed over.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tailrace.errors import RecordsDropped
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.start_offsets import FetchedRange, ReadProgress

TRIES = 10
"""So often a partition is read again from the same offset because its records were dropped; then the worker ends."""

TP = TypeVar("TP", bound=tuple[str, int])


@dataclass(slots=True)
class _Reading:
    """Of one partition, since the last seek. `handed` is the offset behind the last record that was handed over."""

    number: int
    reach: ReadProgress
    handed: int
    missed: bool = False


class DeliveryTracker:
    """Of all partitions that are read; each is begun with a seek, and all are ended when they are taken away."""

    def __init__(self) -> None:
        self._current: dict[tuple[str, int], _Reading] = {}
        self._reached: dict[tuple[str, int], ReadProgress] = {}
        self._again: dict[tuple[str, int], tuple[int, int]] = {}

    def begin(self, starts: Mapping[TP, int], number: int) -> None:
        """From here on nothing of an older reading counts."""
        self._current.update({tp: _Reading(number, ReadProgress(at, at, at), at) for tp, at in starts.items()})

    def end(self) -> None:
        """No record counts any more; how far each partition was read is still known, until `forget`."""
        self._reached = {tp: reading.reach for tp, reading in self._current.items()}
        self._current.clear()
        self._again.clear()

    def forget(self) -> None:
        self._reached.clear()

    def number(self, tp: tuple[str, int]) -> int | None:
        """Of the current reading of a partition."""
        return self._current[tp].number if tp in self._current else None

    def numbers(self, tps: Iterable[TP]) -> dict[TP, int]:
        return {tp: self._current[tp].number for tp in tps if tp in self._current}

    def reach(self, tp: tuple[str, int]) -> ReadProgress | None:
        return self._current[tp].reach if tp in self._current else self._reached.get(tp)

    def fetched(self, tp: tuple[str, int], stretch: FetchedRange, last: int | None) -> None:
        """A fetch has read this stretch, and its last record, if any, has the offset `last`."""
        reading = self._current.get(tp)
        if reading is None or stretch.reading != reading.number:
            return
        start, delivered, passed = reading.reach
        if stretch.start != passed:
            reading.missed = True  # what an earlier fetch has read was lost on its way
        else:
            reading.reach = ReadProgress(start, delivered if last is None else last + 1, stretch.end)

    def hand(self, tp: tuple[str, int], number: int | None, follows: int | None, offset: int) -> bool:
        """Whether this record is the next one to hand over; if it is, it counts as handed over."""
        reading = self._current.get(tp)
        if reading is None or reading.number != number or follows != reading.handed:
            return False
        reading.handed = offset + 1
        return True

    def missed(self, tp: tuple[str, int]) -> None:
        """Somebody was given a record, and not the one before it."""
        if tp in self._current:
            self._current[tp].missed = True

    def dropped(self, tps: Iterable[TP]) -> set[TP]:
        """Those of which records were dropped. Nothing that was fetched is on its way when this is asked."""
        found = {tp: self._current[tp] for tp in tps if tp in self._current}
        return {tp for tp, each in found.items() if each.missed or each.handed < each.reach.delivered}

    def again(self, tp: tuple[str, int], progress: int) -> int:
        """Where to read a partition again of which `progress` is the next offset to apply; raises after some tries."""
        start = max(self._current[tp].reach.start, progress)
        offset, times = self._again.get(tp, (start, 0))
        times = times + 1 if offset == start else 1
        self._again[tp] = (start, times)
        if times > TRIES:
            raise RecordsDropped(
                f"{Partition(*tp)}: records from offset {start} on were fetched {times} times, and dropped each time",
                why="Something between the Kafka consumer and the projection drops them: this is a bug.",
                remedy="Start again: the stored position is before them, nothing was left out. Please report it.",
            )
        return start
