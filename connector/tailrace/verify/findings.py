"""Facts that `tailrace verify` collects about events, and the findings of their comparison. Pure.

Facts are plain tuples, so that tens of millions of them can be written to disk quickly (`spill.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import NamedTuple

WRITTEN, PUBLISHED, DEAD_LETTERS, WAITING, AHEAD, ORDER = range(6)
"""The streams of facts. Each has its own kind of tuple:"""

Written = tuple[str, int, int, int, int, int, bytes | None, int, int]
"""A row: id, frame, digest, transaction, created (ms or UNKNOWN), topic, key, checksums of the record's key and type
(NO_CHECKSUM where today's rules publish no record)."""
Published = tuple[str, int, int, int, int, int, int, int]
"""A record: id, frame, digest, flags, place (the number of a partition), offset, checksums of key and type."""
DeadLetterFact = tuple[str, int, int, int, int, int]
"""A dead letter: id, frame, digest, flags, place, offset."""
Named = tuple[str]
"""An event that waits behind a parked key, or that lies ahead of the pipeline: id."""
Ordered = tuple[int, bytes, int, int, str, int]
"""A record, for the check of order: place, key, position (two numbers), id, offset."""

UNKNOWN = -1
"""An unknown time, topic or frame. A payload with an unknown frame is not compared."""
NO_CHECKSUM = 0
"""A checksum that is not compared."""
AGAIN, EDITED, OUTSIDE, REDRIVEN, DISCARDED, IS_ROW = 1, 2, 4, 8, 16, 32
"""Flags of records (published again, payload edited by a person, outside of the window), then of dead letters. On a
dead letter, AGAIN says that a replay wrote it."""
OTHERS = 64
"""Flag of records while they are read: published by another pipeline, according to the header."""
SECOND = 16
"""Flag of a record in addition to AGAIN: its event had been published before (by a replay, or a redrive for a
consumer). The redrive of a pipeline's dead letter is the first publication of its event."""
EXAMPLES = 20


class RowStatus(StrEnum):
    """The status of a row."""

    PUBLISHED = "published"
    DEAD_LETTERED = "set_aside"
    REDRIVEN = "redriven"
    """The row could not be decoded and was fixed by hand; the record belongs to another event."""
    DISCARDED = "discarded"
    PARKED = "parked"
    NOT_YET = "not_yet"
    BEFORE_START = "before_start"
    """The row existed before the pipeline's first start, with `source.start: now`."""
    EXPIRED = "expired"
    """Not found, but the topic may have deleted records of that age."""
    MISSING = "missing"
    UNDECIDED = "undecided"
    """Not found on the known topics, but the pipeline may have written to others under earlier rules."""


class RecordDefect(StrEnum):
    """A defect of a record."""

    DUPLICATED = "duplicated"
    CHANGED = "changed"
    KEY_CHANGED = "key_changed"
    TYPE_CHANGED = "type_changed"
    WRONG_PARTITION = "wrong_partition"
    OUT_OF_ORDER = "out_of_order"


class Example(NamedTuple):
    """One event of a kind. A row has the expected topic and its time of creation; a record has place and offset."""

    id: str
    topic: int = UNKNOWN
    created_ms: int = UNKNOWN
    place: int = UNKNOWN
    offset: int = UNKNOWN


@dataclass(slots=True)
class Findings:
    """Counts of row statuses and record defects, with some examples of each."""

    rows: int = 0
    records: int = 0
    letters: int = 0
    again: int = 0
    """Records published again on purpose, by a redrive or a replay."""
    not_compared: int = 0
    """Records and dead letters whose payload cannot be compared with its row."""
    only_on_kafka: int = 0
    """Events without a row: purged since, or published by another pipeline."""
    statuses: Counter[str] = field(default_factory=Counter)
    defects: Counter[str] = field(default_factory=Counter)
    examples: defaultdict[str, list[Example]] = field(default_factory=partial(defaultdict, list))

    @property
    def absent(self) -> int:
        """The number of rows that may be found by reading the topics again."""
        kinds = (RowStatus.NOT_YET, RowStatus.MISSING, RowStatus.EXPIRED, RowStatus.UNDECIDED)
        return sum(self.statuses[kind] for kind in kinds)

    def note(self, counter: Counter[str], kind: str, example: Example) -> None:
        counter[kind] += 1
        if len(self.examples[kind]) < EXAMPLES:
            self.examples[kind].append(example)

    def include(self, others: Findings) -> None:
        """Adds the findings of another part of the events."""
        for name in ("rows", "records", "letters", "again", "not_compared", "only_on_kafka"):
            setattr(self, name, getattr(self, name) + getattr(others, name))
        self.statuses.update(others.statuses)
        self.defects.update(others.defects)
        for kind, examples in others.examples.items():
            self.examples[kind] = (self.examples[kind] + examples)[:EXAMPLES]
