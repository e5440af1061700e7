"""Compares the outbox with Kafka, event by event. Pure.

Everything known about an event is joined by its id: its row, its records, its dead letters, whether it waits behind a
parked key or lies ahead of the pipeline. Each row gets exactly one `RowStatus`; in addition, records may have a
`RecordDefect`. What cannot be decided gets its own status and is never counted as wrong.

Nearly all rows and records match. `compare_bucket` matches them in bulk by their packed fingerprints, as keys of two
dictionaries; only events with an unmatched fingerprint are examined one by one (`compare_events`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.verify.backend import AbsenceContext
from tailrace.verify.findings import (
    AGAIN,
    DISCARDED,
    EDITED,
    IS_ROW,
    NO_CHECKSUM,
    OUTSIDE,
    REDRIVEN,
    SECOND,
    UNKNOWN,
    DeadLetterFact,
    Example,
    Findings,
    Named,
    Published,
    RecordDefect,
    RowStatus,
    Written,
)
from tailrace.verify.fingerprints import FLAGS, HEAD

_ROW, _RECORD = 5, 3
"""How many items a bucket has per row (packed fingerprint, transaction, created, topic, key) and per record (packed
fingerprint, place, offset). Transaction and time may be numbers as text: few of them are ever parsed.
"""
_CERTAINTY = {
    RowStatus.MISSING: 0,
    RowStatus.UNDECIDED: 0,
    RowStatus.EXPIRED: 1,
    RowStatus.NOT_YET: 2,
    RowStatus.BEFORE_START: 3,
}
"""How certain it is that the pipeline has passed a row that is not on Kafka; 0 is the most certain."""


def compare_bucket(
    written: list[Any],
    published: list[Any],
    others: tuple[list[DeadLetterFact], list[Named], list[Named]],
    context: AbsenceContext,
    found: Findings,
) -> None:
    """Adds the findings of one bucket: flat lists of rows and records, and DEAD_LETTERS, WAITING and AHEAD facts."""
    letters, waiting, ahead = others
    unmatched = _unmatched(written[::_ROW], published[::_RECORD])
    names = {packed[HEAD.size :] for packed in unmatched}
    names.update(_bytes(letter[0]) for letter in letters)
    rows: list[Written] = []
    records: list[Published] = []
    if names:
        rows = [_written(written, at) for at in _of(names, written[::_ROW])]
        records = [_published(published, at) for at in _of(names, published[::_RECORD])]
    matched = len(written) // _ROW - len(rows)
    found.rows += matched
    found.records += len(published) // _RECORD - len(records)
    found.statuses[RowStatus.PUBLISHED] += matched
    if rows or records or letters:
        compare_events([rows, records, letters, waiting, ahead], context, found)


def _unmatched(rows: list[bytes], records: list[bytes]) -> set[bytes]:
    """Returns fingerprints that are on one side only, or more than once on a side."""
    some, others = dict.fromkeys(rows), dict.fromkeys(records)
    unmatched = set() if some.keys() == others.keys() else some.keys() ^ others.keys()
    for packed, distinct in ((rows, some), (records, others)):
        if len(packed) != len(distinct):
            unmatched.update(each for each, times in Counter(packed).items() if times > 1)
    return unmatched


def _of(names: set[bytes], packed: Iterable[bytes]) -> list[int]:
    return [at for at, each in enumerate(packed) if each[HEAD.size :] in names]


def _written(written: list[Any], number: int) -> Written:
    packed, transaction, created_ms, topic, key = written[number * _ROW : (number + 1) * _ROW]
    _, frame, digest, *checksums = HEAD.unpack_from(packed)
    return (_text(packed[HEAD.size :]), frame, digest, int(transaction), int(created_ms), topic, key, *checksums)


def _published(published: list[Any], number: int) -> Published:
    packed, place, offset = published[number * _RECORD : (number + 1) * _RECORD]
    tag, frame, digest, *checksums = HEAD.unpack_from(packed)
    return (_text(packed[HEAD.size :]), frame, digest, tag & FLAGS, place, offset, *checksums)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def compare_events(facts: Sequence[list[Any]], context: AbsenceContext, found: Findings) -> None:
    """Adds the findings of one bucket: lists of WRITTEN, PUBLISHED, DEAD_LETTERS, WAITING and AHEAD facts."""
    written, published, letters, waiting, ahead = facts
    rows: dict[str, Written | list[Written]] = {}
    for row in written:
        # Ids are unique in nearly every outbox; a list for each of them would double the memory.
        before = rows.setdefault(row[0], row)
        if before is not row:
            rows[row[0]] = [*(before if isinstance(before, list) else [before]), row]
    found.rows += len(written)
    first_hand = _occurrences(published, letters, rows, found)
    waits, lies_ahead = Counter(each[0] for each in waiting), Counter(each[0] for each in ahead)
    state = {each[0]: each[3] for each in letters}
    for event, kept in rows.items():
        copies = kept if isinstance(kept, list) else [kept]
        if len(copies) > 1:
            states = [each[3] for each in letters if each[0] == event]
            accounted = _accounted(first_hand.times[event], states, is_published=event in first_hand.published)
            _compare_copies(copies, accounted, (waits[event], lies_ahead[event]), context, found)
        for row in copies if len(copies) == 1 else ():
            if event in first_hand.published:
                found.statuses[RowStatus.PUBLISHED] += 1
                continue
            status = _dead_letter_status(state.get(event)) or (RowStatus.PARKED if event in waits else None)
            status = status or _absent(row, context, ahead=event in lies_ahead)
            found.note(found.statuses, status, Example(event, row[5], row[4]))
        if first_hand.is_more_than(len(copies), event):
            found.note(found.defects, RecordDefect.DUPLICATED, first_hand.last[event])
    for event in first_hand.last:
        if event not in rows and first_hand.is_more_than(1, event):
            found.note(found.defects, RecordDefect.DUPLICATED, first_hand.last[event])


@dataclass(slots=True)
class _Occurrences:
    """How often each event was published normally or dead-lettered, and the last place if more than once.

    `publications` counts records without a replay header, including those of redrives: an event must have only one.
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
    """Returns the statuses that records and dead letters prove for several rows with one id.

    A replay publishes an event again, so it proves at most one publication, and only if there is no other record.
    """
    first_hand = [flags for flags in states if not flags & AGAIN]
    known = [RowStatus.PUBLISHED] * (times - len(first_hand))
    if not times:
        first_hand = states[-1:]
        known = [RowStatus.PUBLISHED] if is_published else []
    redriven = RowStatus.PUBLISHED if is_published else None
    return known + [status for flags in first_hand if (status := _dead_letter_status(flags) or redriven)]


def _compare_copies(
    copies: list[Written], accounted: list[RowStatus], later: tuple[int, int], context: AbsenceContext, found: Findings
) -> None:
    """Adds the statuses of several rows with one id.

    It cannot be decided which record belongs to which row, so rows that must be on Kafka are matched first. `later` is
    how many of them wait behind a parked key, and how many lie ahead.
    """
    waits, ahead = later
    known = accounted + [RowStatus.PARKED] * waits + [RowStatus.NOT_YET] * ahead
    absent = sorted(((_absent(row, context, ahead=False), row) for row in copies), key=lambda each: _CERTAINTY[each[0]])
    for number, (status, row) in enumerate(absent):
        shown = known[number] if number < len(known) else status
        if shown is RowStatus.PUBLISHED:
            found.statuses[shown] += 1
        else:
            found.note(found.statuses, shown, Example(row[0], row[5], row[4]))


def _occurrences(
    published: list[Published], letters: list[DeadLetterFact], rows: dict[str, Written | list[Written]], found: Findings
) -> _Occurrences:
    seen = _Occurrences()
    alone: set[str] = set()
    for event, frame, digest, flags, place, offset, *checksums in published:
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
            _compare_labels(row, checksums, where, found)
    for event, frame, digest, flags, place, offset in letters:
        row = rows.get(event)
        if row is None and flags & OUTSIDE:
            continue
        found.letters += 1
        # A replay writes dead letters too: for events that had been published or dead-lettered before.
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
    found.note(found.defects, RecordDefect.CHANGED, where)


def _compare_labels(row: Written | list[Written], checksums: list[int], where: Example, found: Findings) -> None:
    """Adds a defect unless key and type are those of a row."""
    rows = row if isinstance(row, list) else [row]
    for at, (label, defect) in enumerate(
        zip(checksums, (RecordDefect.KEY_CHANGED, RecordDefect.TYPE_CHANGED), strict=True), start=7
    ):
        if not any(each[at] in (label, NO_CHECKSUM) for each in rows):
            found.note(found.defects, defect, where)


def _dead_letter_status(flags: int | None) -> RowStatus | None:
    """Returns None if there is no dead letter, or one that was redriven: then its record must be there."""
    if flags is None:
        return None
    if flags & DISCARDED:
        return RowStatus.DISCARDED
    if flags & REDRIVEN:
        return RowStatus.REDRIVEN if flags & IS_ROW else None
    return RowStatus.DEAD_LETTERED


def _absent(row: Written, context: AbsenceContext, *, ahead: bool) -> RowStatus:
    _, _, _, transaction, created_ms, topic, key, *_ = row
    if ahead:
        return RowStatus.NOT_YET
    if context.is_before(transaction, created_ms):
        return RowStatus.BEFORE_START
    if not (context.passed or context.is_behind(transaction)):
        return RowStatus.NOT_YET
    # Without a time of creation, retention cannot excuse the absence.
    if created_ms != UNKNOWN and context.may_be_deleted(topic, key, created_ms):
        return RowStatus.EXPIRED
    return RowStatus.MISSING if context.all_topics else RowStatus.UNDECIDED
