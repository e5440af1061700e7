"""What the outbox holds, compared with what is on Kafka, event by event. Pure.

Everything known of an event comes together by its id: its row, its records, its dead letters, whether it waits behind
a parked key or lies ahead of the pipeline. Each row ends in exactly one `Fate`; beside that, `Flaw`s are found on
records. What cannot be told is called so, and never counted as wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

WRITTEN, PUBLISHED, LETTERS, WAITING, AHEAD, ORDER = range(6)
"""The streams of facts. Each kind is a tuple:"""

Written = tuple[str, int, int, int, int, int, bytes | None, int, int]
"""A row: id, frame, digest, transaction, created (ms or UNKNOWN), topic, key, checksums of the record's key and type
(UNSAID where today's rules make none)."""
Published = tuple[str, int, int, int, int, int, int, int]
"""A record: id, frame, digest, flags, place (a topic's partition), offset, checksums of key and type."""
DeadLetterFacts = tuple[str, int, int, int, int, int]
"""A dead letter: id, frame, digest, flags, place, offset."""
Named = tuple[str]
"""An event that waits, or that lies ahead: id."""
Ordered = tuple[int, bytes, int, int, str, int]
"""A record once more: place, key, position (two numbers), id, offset."""

UNKNOWN = -1
"""Of a time, a topic or a frame. What has an unknown frame is compared with nothing."""
UNSAID = 0
"""Of a checksum: compared with nothing."""
AGAIN, EDITED, OUTSIDE, REDRIVEN, DISCARDED, IS_ROW = 1, 2, 4, 8, 16, 32
"""Flags of records (published again, its payload changed by a person, outside of the window), then of letters: of a
letter AGAIN says that a replay wrote it."""
OTHERS = 64
"""A flag of records while they are read: another pipeline's, as its header tells."""
SECOND = 16
"""Flag of a record beside AGAIN: its event was published before, on purpose (a replay, or a redrive for a consumer).
The redrive of a pipeline's letter is the first publication of its event, and the only one without a replay's header."""
EXAMPLES = 20


class RowStatus(StrEnum):
    """What became of a row."""

    PUBLISHED = "published"
    SET_ASIDE = "set_aside"
    REDRIVEN = "redriven"
    """A row that could not be read, and was mended by hand: its record is another event's."""
    DISCARDED = "discarded"
    PARKED = "parked"
    NOT_YET = "not_yet"
    BEFORE_START = "before_start"
    """In the outbox before the pipeline's first start, which was told to begin with what comes (`start: now`)."""
    EXPIRED = "expired"
    """Not there, on a topic that may have deleted what is so old."""
    MISSING = "missing"
    UNDECIDED = "undecided"
    """Not on the topics that are known, and the pipeline may have written to others under earlier rules."""


_CERTAINTY = {
    RowStatus.MISSING: 0,
    RowStatus.UNDECIDED: 0,
    RowStatus.EXPIRED: 1,
    RowStatus.NOT_YET: 2,
    RowStatus.BEFORE_START: 3,
}
"""How certain it is that a row was passed by the pipeline, if it is not on Kafka."""


class RecordDefect(StrEnum):
    """What is wrong with a record."""

    DUPLICATED = "duplicated"
    CHANGED = "changed"
    KEY_CHANGED = "key_changed"
    TYPE_CHANGED = "type_changed"
    WRONG_PARTITION = "wrong_partition"
    OUT_OF_ORDER = "out_of_order"


class Example(NamedTuple):
    """One event of a kind: of a row where it should be and when it was created, of a record where it is."""

    id: str
    topic: int = UNKNOWN
    created_ms: int = UNKNOWN
    place: int = UNKNOWN
    offset: int = UNKNOWN


@dataclass(slots=True)
class Findings:
    rows: int = 0
    records: int = 0
    letters: int = 0
    again: int = 0
    """Records that were published again on purpose: by a redrive or a replay."""
    not_compared: int = 0
    """Records and letters of rows whose payloads cannot be compared."""
    only_on_kafka: int = 0
    """Events without a row: purged since, or another pipeline's."""
    fates: Counter[str] = field(default_factory=Counter)
    flaws: Counter[str] = field(default_factory=Counter)
    examples: defaultdict[str, list[Example]] = field(default_factory=partial(defaultdict, list))

    @property
    def absent(self) -> int:
        """Rows that may still turn up, if one looks again."""
        kinds = (RowStatus.NOT_YET, RowStatus.MISSING, RowStatus.EXPIRED, RowStatus.UNDECIDED)
        return sum(self.fates[kind] for kind in kinds)

    def note(self, counter: Counter[str], kind: str, example: Example) -> None:
        counter[kind] += 1
        if len(self.examples[kind]) < EXAMPLES:
            self.examples[kind].append(example)

    def include(self, others: Findings) -> None:
        """Adds what was found in another part."""
        for name in ("rows", "records", "letters", "again", "not_compared", "only_on_kafka"):
            setattr(self, name, getattr(self, name) + getattr(others, name))
        self.fates.update(others.fates)
        self.flaws.update(others.flaws)
        for kind, examples in others.examples.items():
            self.examples[kind] = (self.examples[kind] + examples)[:EXAMPLES]


def nowhere(transaction: int) -> bool:
    """Of a pipeline of which it is not known that it is beyond any transaction."""
    return False


def everywhere(transaction: int) -> bool:
    """Of one that is beyond all but the rows known to lie ahead."""
    return True


def no_start(transaction: int, created_ms: int) -> bool:
    """Of a pipeline that publishes all rows, or whose first start is not known."""
    return False


def never(topic: int, key: bytes | None, created_ms: int) -> bool:
    """Of topics that have deleted nothing."""
    return False


@dataclass(frozen=True, slots=True)
class AbsenceContext:
    """What the judgement of absent rows stands on.

    `passed`: the pipeline is beyond every row that was read. Otherwise `is_behind` tells of a row's transaction whether
    the pipeline is beyond that. `may_be_deleted` tells of a topic (by number), a key and a time of creation whether
    such a record may have been published, and deleted since. `all_topics`: no topic was left out that the pipeline may
    have written to. `is_before` tells of a row's transaction and time of creation whether it was there before the first
    start. All may be asked in another process.
    """

    passed: bool
    is_behind: Callable[[int], bool] = nowhere
    may_be_deleted: Callable[[int, bytes | None, int], bool] = never
    all_topics: bool = True
    is_before: Callable[[int, int], bool] = no_start


def compare_events(facts: Sequence[list[Any]], ground: AbsenceContext, found: Findings) -> None:
    """Adds one bucket: lists of WRITTEN, PUBLISHED, LETTERS, WAITING and AHEAD."""
    written, published, letters, waiting, ahead = facts
    rows: dict[str, Written | list[Written]] = {}
    for row in written:
        # Ids are unique in nearly every outbox: a list for each would double the memory.
        before = rows.setdefault(row[0], row)
        if before is not row:
            rows[row[0]] = [*(before if isinstance(before, list) else [before]), row]
    found.rows += len(written)
    first_hand = _sightings(published, letters, rows, found)
    waits, lies_ahead = Counter(each[0] for each in waiting), Counter(each[0] for each in ahead)
    state = {each[0]: each[3] for each in letters}
    for event, kept in rows.items():
        copies = kept if isinstance(kept, list) else [kept]
        if len(copies) > 1:
            states = [each[3] for each in letters if each[0] == event]
            accounted = _accounted(first_hand.times[event], states, is_published=event in first_hand.published)
            _judge_copies(copies, accounted, (waits[event], lies_ahead[event]), ground, found)
        for row in copies if len(copies) == 1 else ():
            if event in first_hand.published:
                found.fates[RowStatus.PUBLISHED] += 1
                continue
            fate = _letter_fate(state.get(event)) or (RowStatus.PARKED if event in waits else None)
            fate = fate or _absent(row, ground, ahead=event in lies_ahead)
            found.note(found.fates, fate, Example(event, row[5], row[4]))
        if first_hand.is_more_than(len(copies), event):
            found.note(found.flaws, RecordDefect.DUPLICATED, first_hand.last[event])
    for event in first_hand.last:
        if event not in rows and first_hand.is_more_than(1, event):
            found.note(found.flaws, RecordDefect.DUPLICATED, first_hand.last[event])


@dataclass(slots=True)
class _Occurrences:
    """How often each event came first-hand, on a topic or as a letter, and where it was seen last if more than once.

    `publications` counts records without a replay's header, those of redrives included: an event has one, whoever
    published it.
    """

    published: set[str] = field(default_factory=set)
    times: Counter[str] = field(default_factory=Counter)
    publications: Counter[str] = field(default_factory=Counter)
    last: dict[str, Example] = field(default_factory=dict)

    def note(self, event: str, place: int, offset: int, flags: int = 0, *, is_record: bool = False) -> None:
        is_first_hand, is_publication = not flags & AGAIN, is_record and not flags & SECOND
        self.times[event] += is_first_hand
        self.publications[event] += is_publication
        if (is_first_hand and self.times[event] > 1) or (is_publication and self.publications[event] > 1):
            self.last[event] = Example(event, place=place, offset=offset)

    def is_more_than(self, count: int, event: str) -> bool:
        return self.times[event] > count or self.publications[event] > count


def _accounted(times: int, states: list[int], *, is_published: bool) -> list[RowStatus]:
    """The fates that records and letters prove for rows of one id: one for each that came first-hand.

    A replay publishes again what was published: it proves no more than one, and only where nothing else is left.
    """
    first_hand = [flags for flags in states if not flags & AGAIN]
    known = [RowStatus.PUBLISHED] * (times - len(first_hand))
    if not times:
        first_hand = states[-1:]
        known = [RowStatus.PUBLISHED] if is_published else []
    redriven = RowStatus.PUBLISHED if is_published else None
    return known + [fate for flags in first_hand if (fate := _letter_fate(flags) or redriven)]


def _judge_copies(
    copies: list[Written], accounted: list[RowStatus], later: tuple[int, int], ground: AbsenceContext, found: Findings
) -> None:
    """Rows of one id. Which record is whose cannot be told: those that must be on Kafka come first.

    `later` are how many of them wait behind a parked key, and how many lie ahead.
    """
    waits, ahead = later
    known = accounted + [RowStatus.PARKED] * waits + [RowStatus.NOT_YET] * ahead
    absent = sorted(((_absent(row, ground, ahead=False), row) for row in copies), key=lambda each: _CERTAINTY[each[0]])
    for number, (fate, row) in enumerate(absent):
        shown = known[number] if number < len(known) else fate
        if shown is RowStatus.PUBLISHED:
            found.fates[shown] += 1
        else:
            found.note(found.fates, shown, Example(row[0], row[5], row[4]))


def _sightings(
    published: list[Published],
    letters: list[DeadLetterFacts],
    rows: dict[str, Written | list[Written]],
    found: Findings,
) -> _Occurrences:
    seen = _Occurrences()
    alone: set[str] = set()
    for event, frame, digest, flags, place, offset, *labels in published:
        row = rows.get(event)
        if row is None and flags & OUTSIDE:
            continue
        found.records += 1
        seen.published.add(event)
        found.again += bool(flags & AGAIN)
        seen.note(event, place, offset, flags, is_record=True)
        if row is None:
            alone.add(event)
        elif not flags & EDITED:
            where = Example(event, place=place, offset=offset)
            _compare(row, frame, digest, where, found)
            _compare_labels(row, labels, where, found)
    for event, frame, digest, flags, place, offset in letters:
        row = rows.get(event)
        if row is None and flags & OUTSIDE:
            continue
        found.letters += 1
        # One of a replay tells what today's rules make of an event that was published, or set aside, before.
        seen.note(event, place, offset, flags)
        if row is None:
            alone.add(event)
        else:
            _compare(row, frame, digest, Example(event, place=place, offset=offset), found)
    found.only_on_kafka += len(alone)
    return seen


def _compare(row: Written | list[Written], frame: int, digest: int, where: Example, found: Findings) -> None:
    for each in row if isinstance(row, list) else (row,):
        if frame == UNKNOWN or each[1] != frame:
            found.not_compared += 1
            return
        if each[2] == digest:
            return
    found.note(found.flaws, RecordDefect.CHANGED, where)


def _compare_labels(row: Written | list[Written], labels: list[int], where: Example, found: Findings) -> None:
    """Key and type: each must be that of a row."""
    rows = row if isinstance(row, list) else [row]
    for at, (label, flaw) in enumerate(
        zip(labels, (RecordDefect.KEY_CHANGED, RecordDefect.TYPE_CHANGED), strict=True), start=7
    ):
        if not any(each[at] in (label, UNSAID) for each in rows):
            found.note(found.flaws, flaw, where)


def _letter_fate(flags: int | None) -> RowStatus | None:
    """None if there is no letter, or one that was redriven: then its record must be there."""
    if flags is None:
        return None
    if flags & DISCARDED:
        return RowStatus.DISCARDED
    if flags & REDRIVEN:
        return RowStatus.REDRIVEN if flags & IS_ROW else None
    return RowStatus.SET_ASIDE


def _absent(row: Written, ground: AbsenceContext, *, ahead: bool) -> RowStatus:
    _, _, _, transaction, created_ms, topic, key, *_ = row
    if ahead:
        return RowStatus.NOT_YET
    if ground.is_before(transaction, created_ms):
        return RowStatus.BEFORE_START
    if not (ground.passed or ground.is_behind(transaction)):
        return RowStatus.NOT_YET
    # Without a time of creation nothing can be said but that it is not there.
    if created_ms != UNKNOWN and ground.may_be_deleted(topic, key, created_ms):
        return RowStatus.EXPIRED
    return RowStatus.MISSING if ground.all_topics else RowStatus.UNDECIDED


def check_order(records: Iterable[Ordered], found: Findings) -> None:
    """Adds one bucket of ORDER: in each partition the positions of a key never go backwards.

    A record that comes twice is a duplicate, and not also out of order.
    """
    latest: dict[tuple[int, bytes], tuple[int, int]] = {}
    seen: set[tuple[int, str]] = set()
    for place, key, major, minor, event, offset in records:
        if (place, event) in seen:
            continue
        seen.add((place, event))
        position = (major, minor)
        before = latest.get((place, key))
        if before is not None and position < before:
            found.note(found.flaws, RecordDefect.OUT_OF_ORDER, Example(event, place=place, offset=offset))
        else:
            latest[place, key] = position
