"""What travels down the line: a Row as the log gave it, the OutboxEvent it means, the Record Kafka is given.

They are immutable by convention and cheap to build: they are made once per event on the hot path.
Payload bytes are carried through untouched from the column to the Kafka value.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.positions.base import Position

Headers = list[tuple[str, str | bytes | None]]


class Column(NamedTuple):
    """A column of the outbox table as the log announces it; `type_oid` is Postgres's type number."""

    name: str
    type_oid: int


Columns = tuple[Column, ...]
TEXT = 25
"""The type number of a column that is a text, whatever the database."""
JSONB = 3802
"""The type number of a column that is JSON which the database has parsed and written anew."""


class Undecodable(tuple[Column, ...]):
    """The columns of a row, some of whose values (in `names`) are no text in the database's encoding."""

    names: list[str]
    encoding: str

    def __new__(cls, columns: Columns, names: list[str], encoding: str) -> Undecodable:
        made = super().__new__(cls, columns)
        made.names, made.encoding = names, encoding
        return made


def with_text_checked(columns: Columns, values: tuple[bytes | None, ...], encoding: str) -> Columns:
    """The columns of a row that was kept elsewhere; marked if some of its values are not UTF-8."""
    bad = [column.name for column, value in zip(columns, values, strict=True) if not _is_utf8(value)]
    return Undecodable(columns, bad, encoding) if bad else columns


def _is_utf8(value: bytes | None) -> bool:
    try:
        return value is None or value.isascii() or value.decode() is not None
    except UnicodeDecodeError:
        return False


UNREADABLE: Columns = (Column("document", 0), Column("why", 0))
"""Of a row that stands for a document which cannot be told in columns: the document, and the reason."""


class Row(NamedTuple):
    """One committed outbox row: its values in text form, and its place in the log.

    `place` names the row for people and headers (`<commit LSN>:<ordinal in its transaction>`); it is unique
    in its log and grows in commit order. `committed_ms` is the commit time, in Unix milliseconds.
    """

    columns: Columns
    values: tuple[bytes | None, ...]
    position: str
    committed_ms: int


class OutboxEvent(NamedTuple):
    """What an outbox row means. `extra` holds further columns, to be sent as headers."""

    id: str
    type: str
    aggregate: str
    key: bytes | None
    payload: bytes | None
    version: str | None
    position: str
    committed_ms: int
    extra: Headers
    keys_unique: bool = False
    """The database has parsed the payload and written it anew (jsonb, BSON): no object in it has a key twice."""


class Route(NamedTuple):
    """Where an event goes. `key_column` names the column whose value is the record's key, if not the event's own."""

    topic: str
    key_column: str | None = None


class Record(NamedTuple):
    """What Kafka is given. The timestamp is the commit time, in Unix milliseconds."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int


class Chunk(NamedTuple):
    """What one `Source.read` brought: rows (perhaps none), the position behind them, whether more is at hand.

    `size` is what the rows weigh, in bytes. `urgent` says that the source waits for its position to be confirmed, as a
    server does when it shuts down.
    """

    rows: list[Row]
    position: Position
    more: bool
    size: int = 0
    urgent: bool = False


def redriven_position(place: str) -> str:
    """What the redrive of an event is called, so that its refusal is not taken for that of the event itself."""
    return f"{place} redriven"
