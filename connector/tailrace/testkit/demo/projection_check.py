"""Compares the events applied by a projection with those on its topic. Pure.

What is expected is what a reader gets who reads the topic once from the start: the ids of the events of each key, in
order. Each kind of difference has its own list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tailrace.testkit.oracle import ConsumedRecord

Histories = Mapping[str, Sequence[str]]
"""The ids of the events of each key, in the order in which they were applied."""


@dataclass(frozen=True, slots=True)
class ProjectionComparison:
    """Counts, and a list of event ids for each kind of error."""

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
    """Returns the expected ids of each key. A duplicate on the topic counts once: the oracle reports it."""
    histories: dict[str, dict[str, None]] = {}
    for record in sorted(published, key=lambda each: (each.topic, each.partition, each.offset)):
        histories.setdefault(record.key, {})[record.id] = None
    return {key: list(ids) for key, ids in histories.items()}


def compare(expected: Histories, found: Histories) -> ProjectionComparison:
    """Compares what is expected with what the projection holds."""
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


def _overtaken(applied: Iterable[str], positions: Mapping[str, int]) -> list[str]:
    """Returns the events that were applied after a later one."""
    wrong: list[str] = []
    furthest = -1
    for event in applied:
        if positions[event] < furthest:
            wrong.append(event)
        furthest = max(furthest, positions[event])
    return wrong
