"""The oracle: compares what was committed to the outbox with what `read_committed` readers saw. Pure.

It knows nothing of how events travelled. The ledger is the writer's own word on each event, in commit order per key;
an outcome the writer could not learn (its connection died inside COMMIT) is settled by the outbox table itself. Every
way to be wrong has its own list, so that a red verdict says what kind of guarantee broke: I1 missing, I2 duplicated,
I3 phantom, I4 out of order, I5/I6 positions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any, NamedTuple

from tailrace.positions.base import Progress


class WriteOutcome(Enum):
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


class WrittenEvent(NamedTuple):
    """One event as its writer knows it; `seq` counts up per key in commit order."""

    id: str
    key: str
    seq: int
    valid: bool
    outcome: WriteOutcome


class ConsumedRecord(NamedTuple):
    """One record as a reader saw it."""

    id: str
    key: str
    topic: str
    partition: int
    offset: int


@dataclass
class OracleVerdict:
    """Counts, and one list of event ids for every way to be wrong."""

    committed: int = 0
    rolled_back: int = 0
    published: int = 0
    dead_lettered: int = 0
    missing: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    phantom: list[str] = field(default_factory=list)
    """Seen, but rolled back or never written."""
    misplaced: list[str] = field(default_factory=list)
    """A valid event among the dead letters, or an invalid one among the published."""
    out_of_order: list[str] = field(default_factory=list)
    positions: list[str] = field(default_factory=list)
    """Stored positions that went backwards, or a slot confirmed beyond them."""

    @property
    def ok(self) -> bool:
        return not (
            self.missing or self.duplicated or self.phantom or self.misplaced or self.out_of_order or self.positions
        )

    def summary(self) -> dict[str, Any]:
        """Counts only, for tables and JSON."""
        counts = {name: len(value) if isinstance(value, list) else value for name, value in vars(self).items()}
        return {**counts, "ok": self.ok}

    def __str__(self) -> str:
        lines = [", ".join(f"{name} {value}" for name, value in self.summary().items())]
        for name, value in vars(self).items():
            if isinstance(value, list) and value:
                lines.append(f"  {name}: {', '.join(value[:5])}{' …' if len(value) > 5 else ''}")
        return "\n".join(lines)


def check_delivery(
    ledger: Iterable[WrittenEvent],
    published: Sequence[ConsumedRecord],
    letters: Sequence[ConsumedRecord] = (),
    *,
    in_table: Collection[str] | None = None,
) -> OracleVerdict:
    """`in_table` holds the ids that the outbox table has in the end; needed only if outcomes are unknown."""
    verdict = OracleVerdict(published=len(published), dead_lettered=len(letters))
    committed: dict[str, WrittenEvent] = {}
    for entry in ledger:
        if entry.outcome is WriteOutcome.COMMITTED or (
            entry.outcome is WriteOutcome.UNKNOWN and in_table is not None and entry.id in in_table
        ):
            committed[entry.id] = entry
        else:
            verdict.rolled_back += 1
    verdict.committed = len(committed)
    seen = Counter(sighting.id for sighting in (*published, *letters))
    verdict.missing = [event for event in committed if event not in seen]
    verdict.duplicated = [event for event, times in seen.items() if times > 1]
    verdict.phantom = [event for event in seen if event not in committed]
    verdict.misplaced = [s.id for s in published if s.id in committed and not committed[s.id].valid]
    verdict.misplaced += [s.id for s in letters if s.id in committed and committed[s.id].valid]
    verdict.out_of_order = _disordered(committed, published)
    return verdict


def _disordered(committed: dict[str, WrittenEvent], published: Sequence[ConsumedRecord]) -> list[str]:
    """Events that stand behind a later event of their key; a key on two partitions has no order at all."""
    by_key: defaultdict[str, list[ConsumedRecord]] = defaultdict(list)
    for sighting in published:
        if sighting.id in committed:
            by_key[sighting.key].append(sighting)
    wrong: list[str] = []
    for sightings in by_key.values():
        if len({(s.topic, s.partition) for s in sightings}) > 1:
            wrong += [s.id for s in sightings]
            continue
        last = -1
        for sighting in sorted(sightings, key=lambda s: s.offset):
            seq = committed[sighting.id].seq
            if seq < last:
                wrong.append(sighting.id)
            last = max(last, seq)
    return wrong


def backward_positions(positions: Sequence[Progress]) -> list[str]:
    """Stored positions, in the order they were stored, that are behind an earlier one (I6)."""
    return [f"{after} after {before}" for before, after in pairwise(positions) if after < before]
