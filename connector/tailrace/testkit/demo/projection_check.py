"""The judgement on a projection: what its rows say they are made of, beside the fold of its topic. Pure.

The fold is what any honest reader comes to who reads the topic once, from the start: of each key the ids of its events,
in their order. Every way to differ from it has a list of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tailrace.testkit.oracle import ConsumedRecord

Histories = Mapping[str, Sequence[str]]
"""Of each key, the ids of its events in the order in which they were applied."""


@dataclass(frozen=True, slots=True)
class ProjectionComparison:
    """Counts, and one list of event ids for every way to be wrong."""

    events: int
    applied: int
    missing: list[str]
    twice: list[str]
    phantom: list[str]
    """Applied, but not on the topic, or to the row of another key."""
    out_of_order: list[str]

    @property
    def ok(self) -> bool:
        return not (self.missing or self.twice or self.phantom or self.out_of_order)


def expected_histories(published: Iterable[ConsumedRecord]) -> dict[str, list[str]]:
    """An event that stands on the topic twice is one event: whether it may stand there is judged elsewhere."""
    folded: dict[str, dict[str, None]] = {}
    for sighting in sorted(published, key=lambda each: (each.topic, each.partition, each.offset)):
        folded.setdefault(sighting.key, {})[sighting.id] = None
    return {key: list(ids) for key, ids in folded.items()}


def compare(expected: Histories, found: Histories) -> ProjectionComparison:
    """`expected` is the fold, `found` what the projection holds."""
    missing: list[str] = []
    twice: list[str] = []
    phantom: list[str] = []
    out_of_order: list[str] = []
    for key in expected.keys() | found.keys():
        places = {event: place for place, event in enumerate(expected.get(key, ()))}
        times = Counter(found.get(key, ()))
        missing += [event for event in places if event not in times]
        twice += [event for event, count in times.items() if count > 1]
        phantom += [event for event in times if event not in places]
        # Each by its first application, which is where a second one would have been left out.
        out_of_order += _overtaken([event for event in times if event in places], places)
    return ProjectionComparison(
        events=sum(map(len, expected.values())),
        applied=sum(map(len, found.values())),
        missing=missing,
        twice=twice,
        phantom=phantom,
        out_of_order=out_of_order,
    )


def _overtaken(applied: Iterable[str], places: Mapping[str, int]) -> list[str]:
    """Events that were applied behind a later one."""
    wrong: list[str] = []
    furthest = -1
    for event in applied:
        if places[event] < furthest:
            wrong.append(event)
        furthest = max(furthest, places[event])
    return wrong
