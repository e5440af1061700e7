"""The oracle: compares what was committed with what `read_committed` consumers read and projections applied. Pure.

It knows nothing of the pipeline in between. The writer records each event and its outcome, in commit order per key. The
outbox table decides outcomes that the writer does not know because its connection broke during COMMIT. Each kind of
error has its own list, so that the verdict says which guarantee was broken: I1 missing, I2 duplicated, I3 phantom, I4
out of order, I5/I6 positions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any, NamedTuple

from tailrace.positions.base import Progress

Histories = Mapping[str, Sequence[str]]
"""The ids of the events of each key, in the order in which they were applied."""


class WriteOutcome(Enum):
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


class WrittenEvent(NamedTuple):
    """One event as recorded by its writer; `seq` counts up per key in commit order."""

    id: str
    key: str
    seq: int
    valid: bool
    outcome: WriteOutcome


class ConsumedRecord(NamedTuple):
    """One record as a consumer read it."""

    id: str
    key: str
    topic: str
    partition: int
    offset: int


@dataclass
class OracleVerdict:
    """Counts, and a list of event ids for each kind of error."""

    committed: int = 0
    rolled_back: int = 0
    published: int = 0
    dead_lettered: int = 0
    missing: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    phantom: list[str] = field(default_factory=list)
    """On Kafka, but rolled back or never written."""
    misplaced: list[str] = field(default_factory=list)
    """A valid event among the dead letters, or an invalid one among the published."""
    out_of_order: list[str] = field(default_factory=list)
    positions: list[str] = field(default_factory=list)
    """Stored positions that went backwards, or a slot that was confirmed beyond them."""

    @property
    def ok(self) -> bool:
        return not (
            self.missing or self.duplicated or self.phantom or self.misplaced or self.out_of_order or self.positions
        )

    def summary(self) -> dict[str, Any]:
        """Returns the counts, for tables and JSON."""
        counts = {name: len(value) if isinstance(value, list) else value for name, value in vars(self).items()}
        return {**counts, "ok": self.ok}

    def __str__(self) -> str:
        lines = [", ".join(f"{name} {value}" for name, value in self.summary().items())]
        for name, value in vars(self).items():
            if isinstance(value, list) and value:
                lines.append(f"  {name}: {', '.join(value[:5])}{' …' if len(value) > 5 else ''}")
        return "\n".join(lines)


def check_delivery(
    written: Iterable[WrittenEvent],
    published: Sequence[ConsumedRecord],
    dead_letters: Sequence[ConsumedRecord] = (),
    *,
    in_table: Collection[str] | None = None,
) -> OracleVerdict:
    """Compares; `in_table` are the ids finally in the outbox table, needed only if outcomes are unknown."""
    verdict = OracleVerdict(published=len(published), dead_lettered=len(dead_letters))
    committed: dict[str, WrittenEvent] = {}
    for event in written:
        if event.outcome is WriteOutcome.COMMITTED or (
            event.outcome is WriteOutcome.UNKNOWN and in_table is not None and event.id in in_table
        ):
            committed[event.id] = event
        else:
            verdict.rolled_back += 1
    verdict.committed = len(committed)
    times_read = Counter(record.id for record in (*published, *dead_letters))
    verdict.missing = [event_id for event_id in committed if event_id not in times_read]
    verdict.duplicated = [event_id for event_id, times in times_read.items() if times > 1]
    verdict.phantom = [event_id for event_id in times_read if event_id not in committed]
    verdict.misplaced = [s.id for s in published if s.id in committed and not committed[s.id].valid]
    verdict.misplaced += [s.id for s in dead_letters if s.id in committed and committed[s.id].valid]
    verdict.out_of_order = _out_of_order(committed, published)
    return verdict


def _out_of_order(committed: dict[str, WrittenEvent], published: Sequence[ConsumedRecord]) -> list[str]:
    """Returns the events that follow a later event of their key; a key on two partitions has no order."""
    by_key: defaultdict[str, list[ConsumedRecord]] = defaultdict(list)
    for record in published:
        if record.id in committed:
            by_key[record.key].append(record)
    wrong: list[str] = []
    numbers = {event_id: event.seq for event_id, event in committed.items()}
    for records in by_key.values():
        if len({(s.topic, s.partition) for s in records}) > 1:
            wrong += [s.id for s in records]
        else:
            wrong += _overtaken([s.id for s in sorted(records, key=lambda s: s.offset)], numbers)
    return wrong


def _overtaken(events: Iterable[str], numbers: Mapping[str, int]) -> list[str]:
    """Returns the events that follow one with a higher number."""
    wrong: list[str] = []
    highest = -1
    for event in events:
        if numbers[event] < highest:
            wrong.append(event)
        highest = max(highest, numbers[event])
    return wrong


def backward_positions(positions: Sequence[Progress]) -> list[str]:
    """Returns the stored positions that are behind one stored earlier (I6)."""
    return [f"{after} after {before}" for before, after in pairwise(positions) if after < before]


@dataclass(frozen=True, slots=True)
class ProjectionComparison:
    """The verdict on a projection: counts, and a list of event ids for each kind of error."""

    events: int
    applied: int
    missing: list[str]
    twice: list[str]
    phantom: list[str]
    """Applied but not on the topic, or applied to the row of another key."""
    out_of_order: list[str]

    @property
    def ok(self) -> bool:
        return not (self.missing or self.twice or self.phantom or self.out_of_order)


def expected_histories(published: Iterable[ConsumedRecord]) -> dict[str, list[str]]:
    """Returns the ids of each key as one reading of the topic from its start yields them.

    A duplicate on the topic counts once: `check_delivery` reports it.
    """
    histories: dict[str, dict[str, None]] = {}
    for record in sorted(published, key=lambda each: (each.topic, each.partition, each.offset)):
        histories.setdefault(record.key, {})[record.id] = None
    return {key: list(ids) for key, ids in histories.items()}


def check_projection(expected: Histories, found: Histories) -> ProjectionComparison:
    """Compares the expected ids with those that a projection has applied."""
    missing: list[str] = []
    twice: list[str] = []
    phantom: list[str] = []
    out_of_order: list[str] = []
    for key in expected.keys() | found.keys():
        positions = {event: position for position, event in enumerate(expected.get(key, ()))}
        times = Counter(found.get(key, ()))
        missing += [event for event in positions if event not in times]
        twice += [event for event, count in times.items() if count > 1]
        phantom += [event for event in times if event not in positions]
        # By the first application of each: a correct projection skips the second one.
        out_of_order += _overtaken([event for event in times if event in positions], positions)
    return ProjectionComparison(
        events=sum(map(len, expected.values())),
        applied=sum(map(len, found.values())),
        missing=missing,
        twice=twice,
        phantom=phantom,
        out_of_order=out_of_order,
    )
