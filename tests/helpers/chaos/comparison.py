"""Compares what was written with what is on the topics and in the projections, after faults and with repetitions.

The testkit's oracle decides. Before, this module accounts for what chaos adds on purpose: replays, redriven dead
letters, and keys that moved to another partition because their topic grew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tailrace.testkit.oracle import (
    ConsumedRecord,
    Histories,
    OracleVerdict,
    WrittenEvent,
    check_delivery,
)


@dataclass
class Published:
    """The records of a topic: those published for the first time, and those of replays."""

    first: list[ConsumedRecord] = field(default_factory=list)
    replayed: list[tuple[str, ConsumedRecord]] = field(default_factory=list)
    """With the id of the replay."""

    def wrong_replays(self) -> list[str]:
        """Returns the ids that a replay published twice, or that were never published for the first time."""
        known = {record.id for record in self.first}
        times = Counter((replay, record.id) for replay, record in self.replayed)
        return [event for (_, event), count in times.items() if count > 1 or event not in known]


def check_pipeline(
    written: Iterable[WrittenEvent],
    published: Published,
    dead_letters: Sequence[ConsumedRecord],
    *,
    in_table: Collection[str],
    redriven: Collection[str],
    growths: int = 0,
) -> OracleVerdict:
    """Returns the oracle's verdict. A redriven event must be dead-lettered once and published once."""
    events = [event._replace(valid=True) if event.id in redriven else event for event in written]
    others = [record for record in dead_letters if record.id not in redriven]
    verdict = check_delivery(events, published.first, others, in_table=in_table)
    letters = Counter(record.id for record in dead_letters)
    verdict.misplaced += [event for event in redriven if letters[event] != 1]
    verdict.out_of_order = out_of_order(events, published.first, growths)
    verdict.duplicated += published.wrong_replays()
    return verdict


def out_of_order(written: Iterable[WrittenEvent], published: Iterable[ConsumedRecord], growths: int = 0) -> list[str]:
    """Returns the events that follow a later event of their key.

    Each time the topic grows, a key may move to another partition, also to one where it was before. Between two
    growths it stays: it moves at most `growths` times.
    """
    wrong = []
    for records in by_key(written, published).values():
        highest: dict[int, int] = {}
        for seq, record in sorted(records, key=lambda each: each[1].offset):
            if seq < highest.get(record.partition, 0):
                wrong.append(record.id)
            highest[record.partition] = max(seq, highest.get(record.partition, 0))
        moves = 0
        for (_, before), (_, after) in pairwise(sorted(records, key=lambda each: each[0])):
            moves += before.partition != after.partition
            if moves > growths:
                wrong.append(after.id)
    return wrong


def by_key(
    written: Iterable[WrittenEvent], published: Iterable[ConsumedRecord]
) -> dict[str, list[tuple[int, ConsumedRecord]]]:
    """Returns the records of each key with the numbers of their events."""
    numbers = {event.id: event.seq for event in written}
    found: dict[str, list[tuple[int, ConsumedRecord]]] = {}
    for record in published:
        if record.id in numbers:
            found.setdefault(record.key, []).append((numbers[record.id], record))
    return found


def expected_histories(written: Iterable[WrittenEvent], published: Iterable[ConsumedRecord]) -> Histories:
    """Returns the ids of each key as a projection of the topic has applied them, which is the order of the writer."""
    return {
        key: list(dict.fromkeys(record.id for _, record in sorted(records, key=lambda each: each[0])))
        for key, records in by_key(written, published).items()
    }
