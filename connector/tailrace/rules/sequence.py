"""Checks the sequence numbers of each aggregate's events: each is one more than the one before. Pure.

It sees every row in commit order, before anything else can reject the event, so an event that is dead-lettered for
another reason leaves no gap. Rows that are marked as replays pass and change nothing. The last numbers of the most
recently used aggregates are kept; the first event of an aggregate that is not among them sets its number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import NamedTuple

import orjson

from tailrace.errors import LayoutMismatch, Reason, Rejected
from tailrace.event import UNREADABLE, Columns, Row, Undecodable
from tailrace.positions.mongo import HASH_DIGITS

INSIDE = "#/"
"""Separates a JSON column and a path in it."""
KEY_BYTES = 200
"""Longer names of aggregates are replaced by their hash."""
DIGITS = 19
"""As many as a bigint may have."""
ABSENT = -1
"""The index of a field that a document does not have."""
SEPARATOR = b"\x00"
"""No text in Postgres contains it."""


class SequenceColumns(NamedTuple):
    """Columns, or paths in JSON columns: the number, what names an aggregate, and what marks a replay."""

    number: str
    aggregate: tuple[str, ...]
    replay: str | None = None


class _Value(NamedTuple):
    """Where a value is: the index of its column, and the path in it."""

    at: int
    path: tuple[str, ...]

    def of(self, values: tuple[bytes | None, ...]) -> bytes | None:
        raw = values[self.at] if self.at != ABSENT else None
        return raw if raw is None or not self.path else _inside(raw, self.path)


class _Places(NamedTuple):
    number: _Value
    aggregate: tuple[_Value, ...]
    replay: _Value | None


class SequenceCheck:
    """The last sequence number of each aggregate. Belongs to one thread."""

    def __init__(self, columns: SequenceColumns, *, limit: int, fixed: bool) -> None:
        """`limit` is the number of aggregates that are kept. `fixed`: all rows have the same columns, as in a table."""
        self._names = columns
        self._limit = limit
        self._fixed = fixed
        self._columns: Columns | None = None
        self._places: _Places | None = None
        self._last: OrderedDict[bytes, int] = OrderedDict()
        self._changed: dict[bytes, int | None] = {}
        self.is_replayed: Callable[[str], bool] | None = None
        """Whether the row at a position was seen before, in a pipeline that was rewound."""

    def load(self, aggregate: bytes, number: int | None) -> None:
        """Takes over a stored number; None forgets the aggregate."""
        self._last.pop(aggregate, None)
        if number is not None:
            self._last[aggregate] = number
            self._evict()

    def forget(self) -> None:
        """Forgets all numbers."""
        self._last.clear()
        self._changed.clear()

    def observe(self, rows: Iterable[Row]) -> dict[str, Rejected]:
        """Notes the numbers of these rows; returns the rejections of those that are out of order, by position."""
        rejections: dict[str, Rejected] = {}
        for row in rows:
            columns, values, position, _ = row
            if columns is not self._columns:
                self._turn_to(columns)
            places = self._places
            if places is None or (self.is_replayed is not None and self.is_replayed(position)):
                continue
            if places.replay is not None and places.replay.of(values) is not None:
                continue
            raw = places.number.of(values)
            if raw is None or not raw.isdigit() or len(raw) > DIGITS:
                rejections[position] = self._unusable(raw)
                continue
            wrong = self._note(self._aggregate(places, values), int(raw), is_first_read(position))
            if wrong:
                rejections[position] = _rejected(wrong, places, values)
        return rejections

    def changes(self) -> dict[bytes, int | None]:
        """Returns what is to be stored since the last call: the number of each aggregate, None if it is forgotten."""
        changed, self._changed = self._changed, {}
        return changed

    def _note(self, aggregate: bytes, number: int, first_read: bool) -> str | None:
        """Notes a number; returns what is wrong with it."""
        last = self._last.get(aggregate)
        if last is not None and number <= last:
            return None if first_read else f"{number} repeats, after {last}"
        self._last[aggregate] = number
        self._last.move_to_end(aggregate)
        self._changed.pop(aggregate, None)  # stored in the order of their last events
        self._changed[aggregate] = number
        self._evict()
        if last is None or number == last + 1 or first_read:
            return None
        missing = f"{last + 1} is" if number == last + 2 else f"{last + 1} to {number - 1} are"
        return f"{number} follows {last}, and {missing} missing"

    def _evict(self) -> None:
        while len(self._last) > self._limit:
            aggregate, _ = self._last.popitem(last=False)
            self._changed[aggregate] = None

    def _aggregate(self, places: _Places, values: tuple[bytes | None, ...]) -> bytes:
        name = SEPARATOR.join(value.of(values) or b"" for value in places.aggregate)
        return name if len(name) <= KEY_BYTES else b"#" + blake2b(name, digest_size=32).hexdigest().encode()

    def _turn_to(self, columns: Columns) -> None:
        """Finds the columns. Rows that cannot be read are dead-lettered as such, and have no number."""
        self._columns, self._places = columns, None
        if columns == UNREADABLE or isinstance(columns, Undecodable):
            return
        at = {column.name: index for index, column in enumerate(columns)}
        wanted = (self._names.number, *self._names.aggregate)
        missing = [name for name in wanted if name.partition(INSIDE)[0] not in at]
        if missing and self._fixed:
            raise LayoutMismatch(
                f"rows of the outbox have no column {missing[0].partition(INSIDE)[0]!r}",
                why="rules.sequence needs it to check the sequence numbers of an aggregate.",
                remedy="Add the column to the table and to the publication, or name another in rules.sequence.",
            )
        at |= {name.partition(INSIDE)[0]: ABSENT for name in missing}
        replay = self._names.replay
        self._places = _Places(
            _value(self._names.number, at),
            tuple(_value(name, at) for name in self._names.aggregate),
            _value(replay, at) if replay and replay.partition(INSIDE)[0] in at else None,
        )

    def _unusable(self, raw: bytes | None) -> Rejected:
        found = "missing" if raw is None else "not a whole number"
        return Rejected(
            Reason.PERMANENT_FAILURE,
            f"the sequence number in {self._names.number!r} is {found}",
            remedy="Have the service number the events of an aggregate, or change rules.sequence.number.",
        )


def is_first_read(position: str) -> bool:
    """Whether a row was read from the table or collection, where the order is not that of the commits."""
    number = position.rpartition(":")[2]
    return number.startswith("t") or len(number) == HASH_DIGITS


def _rejected(wrong: str, places: _Places, values: tuple[bytes | None, ...]) -> Rejected:
    name = " ".join((value.of(values) or b"").decode(errors="replace")[:100] for value in places.aggregate)
    return Rejected(
        Reason.PERMANENT_FAILURE,
        f"the sequence number of {name} is out of order: {wrong}",
        remedy="Find out what the service did with the other numbers; then redrive or discard this event.",
    )


def _value(name: str, at: dict[str, int]) -> _Value:
    column, _, path = name.partition(INSIDE)
    return _Value(at[column], tuple(path.split("/")) if path else ())


def _inside(raw: bytes, path: tuple[str, ...]) -> bytes | None:
    """Returns the value at `path` of a JSON text; None if there is none."""
    try:
        found = orjson.loads(raw)
    except ValueError:
        return None
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    if found is None or isinstance(found, str):
        return None if found is None else found.encode()
    return orjson.dumps(found)
