"""The data of one event: a Row from the log, the OutboxEvent in it, and the Record for Kafka.

They are immutable by convention and cheap to build, because the hot path builds one of each per event. Payload bytes
are passed on unchanged from the column to the Kafka value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    # Only for annotations: a service that writes to its outbox has no positions.
    from tailrace.positions.base import Position

Headers = list[tuple[str, str | bytes | None]]


class Column(NamedTuple):
    """A column of the outbox table as the log announces it; `type_oid` is the OID of its Postgres type."""

    name: str
    type_oid: int


Columns = tuple[Column, ...]
TEXT = 25
"""The type of text columns, for any database."""
JSONB = 3802
"""The type of JSON columns that the database has parsed and serialized itself."""


class Undecodable(tuple[Column, ...]):
    """The columns of a row in which the values of `names` are not valid in the database's encoding."""

    names: list[str]
    encoding: str

    def __new__(cls, columns: Columns, names: list[str], encoding: str) -> Undecodable:
        made = super().__new__(cls, columns)
        made.names, made.encoding = names, encoding
        return made


def with_text_checked(columns: Columns, values: tuple[bytes | None, ...], encoding: str) -> Columns:
    """Returns the columns of a stored row, marked as Undecodable if some of its values are not UTF-8."""
    bad = [column.name for column, value in zip(columns, values, strict=True) if not _is_utf8(value)]
    return Undecodable(columns, bad, encoding) if bad else columns


def _is_utf8(value: bytes | None) -> bool:
    try:
        return value is None or value.isascii() or value.decode() is not None
    except UnicodeDecodeError:
        return False


UNREADABLE: Columns = (Column("document", 0), Column("why", 0))
"""The columns of a row that stands for a document without readable columns: the document and the reason."""


class Row(NamedTuple):
    """One committed outbox row: its values in text form, and its position in the log.

    `position` is a text for people and headers, `<commit LSN>:<ordinal in its transaction>`. It is unique in its log
    and grows in commit order. `committed_ms` is the commit time in Unix milliseconds.
    """

    columns: Columns
    values: tuple[bytes | None, ...]
    position: str
    committed_ms: int


class OutboxEvent(NamedTuple):
    """The event in an outbox row. `extra` holds further columns, which are sent as headers."""

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
    """The database has parsed and serialized the payload (jsonb, BSON): no object in it repeats a key."""


class Route(NamedTuple):
    """The topic of an event. `key_column` names the column with the record's key, if it is not the event's own key."""

    topic: str
    key_column: str | None = None


class Record(NamedTuple):
    """A Kafka record. The timestamp is the commit time in Unix milliseconds."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int


class Chunk(NamedTuple):
    """The result of one `RowSource.read`: rows (perhaps none), the position behind them, and whether more is available.

    `size` is the size of the rows in bytes. `urgent` says that the source waits for its position to be confirmed, as a
    server does when it shuts down.
    """

    rows: list[Row]
    position: Position
    more: bool
    size: int = 0
    urgent: bool = False


def redriven_position(position: str) -> str:
    """Returns the name for the redrive of an event, so that its refusal is not taken for one of the event itself."""
    return f"{position} redriven"
