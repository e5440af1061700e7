"""The schedule of a chaos run: which fault, when, on whom. Pure: it depends on the seed and the duration only.

A run is a sequence of chapters. Within a chapter three lanes inject faults at the same time: into processes, into
servers and links, and into data. Each lane draws its faults from a shuffled list, so that every fault occurs before one
occurs again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

CHAPTER_SECONDS = 60.0
"""The planned duration of a chapter, after which everything must recover."""


class Lane(Enum):
    PROCESSES = "processes"
    SERVERS = "servers"
    DATA = "data"


SERVICES = ("orders", "users")
PROJECTIONS = ("postgres projection", "mongo projection")
SERVERS = ("postgres", "mongo", "kafka")

FAULTS: Mapping[Lane, Mapping[str, Sequence[str]]] = {
    Lane.PROCESSES: {
        "kill": (*SERVICES, *PROJECTIONS),
        "suspend": (*SERVICES, *PROJECTIONS),
        "stop": (*SERVICES, *PROJECTIONS),
        "second instance": (*SERVICES, *PROJECTIONS),
    },
    Lane.SERVERS: {
        "kill server": SERVERS,
        "stop server": SERVERS,
        "hang server": SERVERS,
        "end walsender": ("postgres",),
        "step down": ("mongo",),
        "cut": SERVERS,
        "cut after bytes": SERVERS,
        "refuse": SERVERS,
        "blackhole": SERVERS,
        "half-open": SERVERS,
        "slow": ("postgres", "kafka"),
    },
    Lane.DATA: {
        "bad payloads": SERVICES,
        "redrive": SERVICES,
        "replay": SERVICES,
        "add column": ("orders",),
        "lower topic limit": SERVICES,
        "delete old rows": SERVICES,
        "truncate": ("orders",),
    },
}
"""The faults of each lane, and their targets. The end of each chapter adds `grow topic`."""

PAUSES: Mapping[Lane, tuple[float, float]] = {
    Lane.PROCESSES: (0.5, 4.0),
    Lane.SERVERS: (0.5, 5.0),
    Lane.DATA: (1.0, 6.0),
}
TAKES: Mapping[str, float] = {
    "kill": 4.0,
    "stop": 4.0,
    "second instance": 9.0,
    "kill server": 4.0,
    "stop server": 5.0,
    "replay": 5.0,
    "redrive": 3.0,
}
"""About how long a fault takes besides its hold, in seconds: mostly the start of a process."""
HOLDS = (0.3, 1.0, 3.0, 8.0)
"""How long a fault lasts that has a duration, in seconds."""
GROW_EVERY = 3
"""After how many chapters a topic gets one more partition."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault: `at` seconds after the begin of its chapter; `hold` and `choice` are for the fault to interpret."""

    chapter: int
    lane: str
    at: float
    kind: str
    target: str
    hold: float
    choice: float
    """Between 0 and 1: the fault's own random number."""

    def __str__(self) -> str:
        return f"chapter {self.chapter} +{self.at:5.1f} s  {self.kind} ({self.target}), hold {self.hold:g} s"


def plan(seed: int, minutes: float) -> list[list[PlannedFault]]:
    """Returns the faults of each chapter, in the order of their times. The same arguments give the same faults."""
    chapters = max(1, round(minutes * 60 / CHAPTER_SECONDS))
    seconds = min(CHAPTER_SECONDS, minutes * 60)
    lanes = [_lane(lane, random.Random(f"{seed} {lane.value}"), chapters, seconds) for lane in Lane]
    chance = random.Random(f"{seed} topics")
    found: list[list[PlannedFault]] = []
    for number, parts in enumerate(zip(*lanes, strict=True)):
        faults = sorted((fault for part in parts for fault in part), key=lambda fault: (fault.at, fault.lane))
        target = chance.choice(SERVICES)
        if number % GROW_EVERY == GROW_EVERY - 1 or (number == 0 and chapters < GROW_EVERY):
            faults.append(PlannedFault(number, Lane.DATA.value, seconds, "grow topic", target, 0.0, 0.0))
        found.append(faults)
    return found


def _lane(lane: Lane, chance: random.Random, chapters: int, seconds: float) -> list[list[PlannedFault]]:
    drawn = _drawn(lane, chance)
    found = []
    for number in range(chapters):
        faults = []
        at = chance.uniform(*PAUSES[lane])
        while at < seconds:
            kind, target = next(drawn)
            hold = chance.choice(HOLDS)
            faults.append(PlannedFault(number, lane.value, round(at, 1), kind, target, hold, round(chance.random(), 6)))
            at += hold + TAKES.get(kind, 0.5) + chance.uniform(*PAUSES[lane])
        found.append(faults)
    return found


def _drawn(lane: Lane, chance: random.Random) -> Iterator[tuple[str, str]]:
    """Yields each fault of the lane with each target once before any comes again."""
    pairs = [(kind, target) for kind, targets in FAULTS[lane].items() for target in targets]
    while True:
        yield from chance.sample(pairs, len(pairs))


def as_json(chapters: Sequence[Sequence[PlannedFault]]) -> list[dict[str, object]]:
    return [asdict(fault) for faults in chapters for fault in faults]
