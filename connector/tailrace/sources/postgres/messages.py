"""Logical messages as an outbox without a table: events written with pg_logical_emit_message(true, prefix, content).

The content is a JSON object with the columns of the layout, such as `{"id": …, "type": …, "payload": …}`. It becomes a
row of text columns; a payload that is an object or array is published byte for byte as the content has it. Content that
is no such object becomes a row with the reason, and is dead-lettered. Transactional messages are part of the log of
their transaction: they come in its order, and never if it, or their savepoint, was rolled back. Others are written at
once, even if the transaction fails, so they are no events.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import msgspec

from tailrace.errors import ProtocolError, UnexpectedChange
from tailrace.event import TEXT, UNREADABLE, Column, Columns, Row
from tailrace.positions.postgres import LsnPosition, format_lsn
from tailrace.sources.postgres.options import MessageOptions
from tailrace.sources.postgres.transactions import Transactions

MESSAGE: Final = ord("M")
JSON = 114
"""The type of a payload: JSON that the database has not parsed."""
SHAPES = 256
"""How many sets of fields are cached; messages of one service have a handful."""
WIDTH = 200
"""Sets with more fields are not cached, so that memory is bounded;"""
NAMES_CHARS = 16_384
"""nor sets whose names have more characters in total."""
IGNORED = "NonTransactionalMessage"
"""The name of the warning about messages that are no events."""

_PREFIX_AT = 10
"""The offset of the prefix: behind tag, flags and LSN."""
_TRANSACTIONAL = 1
_head = struct.Struct(">xBQ").unpack_from
_size = struct.Struct(">I").unpack_from
_QUOTE, _BACKSLASH = b'"\\'
_new_row = tuple.__new__


class MessageConverter:
    """Makes rows of the contents of messages."""

    def __init__(self, options: MessageOptions) -> None:
        self._options = options
        self._fields = options.required + options.optional
        self._known = options.ignored.union(self._fields)
        self._decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
        self._shapes: dict[tuple[str, ...], Columns] = {}

    def row(self, content: bytes, position: str, committed_ms: int) -> Row:
        """Returns the row of a message; never fails."""
        try:
            if not content.isascii():
                content.decode()  # the decoder does not check the text inside of values
            fields = self._decode(content)
            names = tuple(fields)
            columns = self._shapes.get(names) or self._remember(names)
            values = tuple([_text(fields.get(name)) for name, _ in columns])
        except UnicodeDecodeError:
            return _unreadable(content, "the message is not valid UTF-8", position, committed_ms)
        except msgspec.ValidationError:
            return _unreadable(content, "the message is no JSON object", position, committed_ms)
        except (msgspec.DecodeError, RecursionError) as error:
            why = f"the message is not usable JSON: {str(error) or 'it is nested too deeply'}"
            return _unreadable(content, why, position, committed_ms)
        except KeyError as error:
            return _unreadable(content, f"the message has no field {error}", position, committed_ms)
        return _new_row(Row, (columns, values, position, committed_ms))

    def _remember(self, names: tuple[str, ...]) -> Columns:
        """Returns the columns of messages with these fields; raises KeyError if one is missing."""
        for name in self._options.required:
            if name not in names:
                raise KeyError(name)
        wanted = self._fields + tuple(name for name in names if name not in self._known)
        columns = tuple(Column(name, JSON if name == self._options.payload else TEXT) for name in wanted)
        if len(self._shapes) >= SHAPES:
            self._shapes.clear()
        # The same object for the same columns in any order: later steps compare it by identity.
        columns = next((known for known in self._shapes.values() if known == columns), columns)
        if len(names) <= WIDTH and sum(map(len, names)) <= NAMES_CHARS:
            self._shapes[names] = columns
        return columns


class MessageTransactions(Transactions):
    """Reads the events from messages instead of rows."""

    def __init__(
        self,
        start: LsnPosition,
        *,
        options: MessageOptions,
        warn: Callable[[str], None],
        halt_on_change: bool,
        adopted: bool = False,
    ) -> None:
        super().__init__(start, schema="", table="", halt_on_change=halt_on_change, adopted=adopted)
        self._prefix = options.prefix
        self._start_of_ours = options.prefix.encode() + b"\0"
        self._content_at = _PREFIX_AT + len(self._start_of_ours)
        self._row = MessageConverter(options).row
        self._warn = warn
        self._ignored = 0

    def feed(self, frame: bytes, at: int) -> None:
        if len(frame) <= at or frame[at] != MESSAGE:
            super().feed(frame, at)
            return
        if not frame.startswith(self._start_of_ours, at + _PREFIX_AT):
            return
        content_at = at + self._content_at
        try:
            flags, lsn = _head(frame, at)
            (size,) = _size(frame, content_at)
        except struct.error:
            raise ProtocolError(f"pgoutput message is truncated at offset {len(frame)}") from None
        content = frame[content_at + 4 :]
        if len(content) != size:
            raise ProtocolError(f"pgoutput message has {len(content)} bytes of content instead of {size}")
        if not flags & _TRANSACTIONAL:
            self._ignore(lsn)
            return
        if not self.open:
            raise self._disorder("a transactional message is outside of a transaction")
        self._seen = seen = self._seen + 1
        if seen > self._to_skip:
            self.rows.append(self._row(content, f"{self._position_prefix}{seen}", self._commit_ms))

    def _ignore(self, lsn: int) -> None:
        what = f"a message with the prefix {self._prefix!r} at {format_lsn(lsn)} is not transactional"
        if self._halt_on_change:
            raise UnexpectedChange(
                what,
                why="source.on_change is `halt`. Such a message is written even if its transaction is rolled back, so "
                "it is no event.",
                remedy="Have the service call pg_logical_emit_message(true, …), and set on_change: ignore to continue "
                "behind this message.",
            )
        self._ignored += 1
        # At 1, 2, 4, 8 …: a service that always does so must not fill the log.
        if self._ignored & (self._ignored - 1) == 0:
            self._warn(
                f"{IGNORED}: {what} and was not published, {self._ignored} so far. Such a message is written even if "
                "its transaction is rolled back. Have the service call pg_logical_emit_message(true, …)."
            )


def _text(raw: msgspec.Raw | None) -> bytes | None:
    """Returns a value as text: a string without its quotes, anything else as JSON; None for null."""
    if raw is None:
        return None
    value = bytes(raw)
    if value[0] == _QUOTE:
        return msgspec.json.decode(value, type=str).encode() if _BACKSLASH in value else value[1:-1]
    return None if value == b"null" else value


def _unreadable(content: bytes, why: str, position: str, committed_ms: int) -> Row:
    return Row(UNREADABLE, (content, why.encode()), position, committed_ms)
