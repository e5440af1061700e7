"""Compares what was written with what is on the topics and in the projections, after faults and with repetitions.

The testkit's oracle decides. Before, this module accounts for what chaos adds on purpose: replays, redriven dead
letters, and keys that moved to another partition because their topic grew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
) -> OracleVerdict:
    """Returns the oracle's verdict. A redriven event must be dead-lettered once and published once."""
    events = [event._replace(valid=True) if event.id in redriven else event for event in written]
    others = [record for record in dead_letters if record.id not in redriven]
    verdict = check_delivery(events, published.first, others, in_table=in_table)
    letters = Counter(record.id for record in dead_letters)
    verdict.misplaced += [event for event in redriven if letters[event] != 1]
    verdict.out_of_order = out_of_order(events, published.first)
    verdict.duplicated += published.wrong_replays()
    return verdict


def out_of_order(written: Iterable[WrittenEvent], published: Iterable[ConsumedRecord]) -> list[str]:
    """Returns the events that follow a later event of their key.

    A key that moved has its later events in another partition: the partitions follow each other and never alternate.
    """
    numbers = {event.id: event.seq for event in written}
    wrong = []
    for records in histories_by_key(published, numbers).values():
        highest = 0
        for record in records:
            if numbers[record.id] < highest:
                wrong.append(record.id)
            highest = max(highest, numbers[record.id])
    return wrong


def histories_by_key(
    published: Iterable[ConsumedRecord], numbers: Mapping[str, int]
) -> dict[str, list[ConsumedRecord]]:
    """Returns the records of each key: by partition in the order of their first event, then by offset."""
    parts: dict[tuple[str, int], list[ConsumedRecord]] = {}
    for record in sorted(published, key=lambda each: (each.partition, each.offset)):
        if record.id in numbers:
            parts.setdefault((record.key, record.partition), []).append(record)
    found: dict[str, list[ConsumedRecord]] = {}
    for (key, _), records in sorted(parts.items(), key=lambda part: numbers[part[1][0].id]):
        found.setdefault(key, []).extend(records)
    return found


def expected_histories(written: Iterable[WrittenEvent], published: Iterable[ConsumedRecord]) -> Histories:
    """Returns the ids of each key as a projection of the topic has applied them."""
    numbers = {event.id: event.seq for event in written}
    return {
        key: list(dict.fromkeys(record.id for record in records))
        for key, records in histories_by_key(published, numbers).items()
    }
