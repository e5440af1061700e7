"""Reads a dead letter: its reason, and the event, row or consumer's record that it contains. Pure.

A dead letter that lacks a part (its payload, its key or a column did not fit, or was not to be stored) yields no event:
an incomplete event must not be published. The remedy says where the missing part can be found.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import orjson

from tailrace.dlq.record import FOREIGN, KEPT, PREFIX
from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.event import Column, Headers, OutboxEvent, Record, Row, with_text_checked
from tailrace.positions.base import MALFORMED
from tailrace.records.plain import OUR_HEADERS

REMEDY = " Remedy: "
"""Separates explanation and remedy in their common header."""
_RECORD_HEADERS = ("id", "type", "tailrace.consumer.timestamp", "tailrace.payload.sha256")
_ROW_HEADERS = ("tailrace.pipeline", "tailrace.position", "id", "type", "timestamp", "tailrace.payload.sha256")
FIRST = "tailrace.parked"
"""The header of a dead letter that other events wait behind."""
_id = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,18})", re.ASCII).fullmatch


class DeadLetterId(NamedTuple):
    """The id of a dead letter: `0-42` is offset 42 of partition 0."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> DeadLetterId:
        """`0-42`, or `42` for partition 0."""
        found = _id(text.strip())
        if found is None:
            raise ConfigError(
                f"{text!r} is not the id of a dead letter", remedy="Take one from `tailrace dlq list`, such as 0-42."
            )
        return cls(int(found[1] or 0), int(found[2]))


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of the dead-letter topic. `recorded_ms` is the record's own timestamp."""

    id: DeadLetterId
    recorded_ms: int
    key: bytes | None
    value: bytes
    headers: Headers
    details: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """The headers as text; the last one of each name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "details", {name: _text(value) for name, value in self.headers})

    @property
    def reason(self) -> str:
        return self.details.get("tailrace.reason", "")

    @property
    def explanation(self) -> str:
        return self.details.get("tailrace.explanation", "").rpartition(REMEDY)[0] or self.details.get(
            "tailrace.explanation", ""
        )

    @property
    def remedy(self) -> str:
        before, _, remedy = self.details.get("tailrace.explanation", "").rpartition(REMEDY)
        return remedy if before else ""

    @property
    def position(self) -> str:
        return self.details.get("tailrace.position", "")

    @property
    def topic(self) -> str | None:
        """The topic of the event, if known; for a consumer's dead letter, the topic it was read from."""
        return self.details.get("tailrace.topic")

    @property
    def consumer(self) -> str | None:
        """The group of the consumer that wrote it; None if a pipeline did."""
        return self.details.get("tailrace.consumer")

    @property
    def read_from(self) -> str:
        """Where the consumer read the record: topic, partition and offset."""
        partition, offset = (self.details.get(f"tailrace.consumer.{name}", "?") for name in ("partition", "offset"))
        return f"{self.topic}[{partition}]@{offset}"

    @property
    def fingerprint(self) -> str | None:
        """Identifies the event a dead letter was written for. Copies have the same fingerprint, and no other has it.

        For a consumer's dead letter it is that of the record that was read, not of position and id: an event that was
        redriven and failed again has the position and id of its first dead letter. A pipeline writes the dead letter of
        a row again after a rewind, in a replay, or with at-least-once delivery. A dead letter that other events wait
        behind is no copy and has no fingerprint: it must be resolved itself.
        """
        if self.consumer is None:
            return None if FIRST in self.details else _digest(self.details.get(name, "") for name in _ROW_HEADERS)
        parts = (
            self.consumer,
            self.read_from,
            self.position,
            *(self.details.get(name, "") for name in _RECORD_HEADERS),
        )
        return _digest(parts)

    @property
    def event_id(self) -> str | None:
        if self.consumer is None:
            return self.details.get("id")
        return self.details.get("id") or self.details.get("ce_id") or self.read_from

    @property
    def type(self) -> str | None:
        return (
            self.details.get("type")
            if self.consumer is None
            else self.details.get("type") or self.details.get("ce_type")
        )

    @property
    def key_text(self) -> str | None:
        return None if self.key is None else _text(self.key)

    @property
    def kind(self) -> str:
        """`original`, `omitted`, `null` or `row`."""
        return self.details.get("tailrace.payload", "")

    @property
    def committed_ms(self) -> int:
        """When the row was committed. The broker may set the timestamp of records, so the header comes first."""
        stamp = self.details.get("tailrace.consumer.timestamp") or self.details.get("timestamp", "")
        return int(stamp) if stamp.isascii() and stamp.isdigit() else self.recorded_ms

    @property
    def is_row(self) -> bool:
        """Whether it contains a row that could not be read as an event."""
        return self.event_id is None

    def carried(self) -> Headers:
        """The table's further columns."""
        ours = (PREFIX, *FOREIGN)
        return [each for each in self.headers if each[0] not in OUR_HEADERS and not each[0].startswith(ours)]

    def with_payload(self, value: bytes) -> DeadLetter:
        """A copy with another payload; for a row, `value` is the row as JSON."""
        kind = b"row" if self.is_row else b"original"
        headers: Headers = [(name, kind if name == "tailrace.payload" else old) for name, old in self.headers]
        return replace(self, value=value, headers=headers)

    def is_original(self, value: bytes) -> bool:
        """Whether `value` is exactly the payload that the dead letter was written for."""
        return hashlib.sha256(value).hexdigest() == self.details.get("tailrace.payload.sha256")

    def event(self) -> OutboxEvent:
        """The event; Rejected if a part is missing. Not for rows."""
        self._require_whole()
        return OutboxEvent(
            id=self.event_id or "",
            type=self.type or "",
            aggregate=self.details.get("tailrace.aggregate", ""),
            key=self.key,
            payload=None if self.kind == "null" else self.value,
            version=self.details.get("tailrace.version"),
            position=self.position,
            committed_ms=self.committed_ms,
            extra=self.carried(),
        )

    def record(self) -> Record:
        """The record that a consumer read, unchanged; Rejected if a part is missing."""
        self._require_whole()
        if self.topic is None:
            raise self._incomplete("does not name the topic that it was read from")
        ours = (PREFIX, *FOREIGN)
        headers: Headers = [
            (name.removeprefix(KEPT), value)
            for name, value in self.headers
            if name.startswith(KEPT) or not name.startswith(ours)
        ]
        value = None if self.kind == "null" else self.value
        return Record(self.topic, value, self.key, headers, self.committed_ms)

    def row(self) -> Row:
        """The row; Rejected if a part is missing."""
        self._require_whole()
        try:
            columns = tuple(Column(str(name), int(oid)) for name, oid in orjson.loads(self.details["tailrace.columns"]))
        except MALFORMED:
            raise self._incomplete("does not name the columns of its table") from None
        values = _values(self.value, [column.name for column in columns])
        return Row(with_text_checked(columns, values, "UTF8"), values, self.position, self.committed_ms)

    def _require_whole(self) -> None:
        if self.kind not in ("original", "null", "row"):
            size, digest = (
                self.details.get("tailrace.payload.length", "?"),
                self.details.get("tailrace.payload.sha256", "?"),
            )
            what = "row" if self.is_row else "payload"
            source = "the outbox table or the service" if self.consumer is None else self.read_from
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"the dead letter does not contain the {what}, only its length ({size} bytes) and SHA-256 ({digest})",
                remedy=f"Save the {what} from {source}, and give it with --payload FILE; "
                "or write the event to the outbox again and discard the dead letter.",
            )
        if "tailrace.key.omitted" in self.details:
            raise self._incomplete(f"does not contain the key, which has {self.details['tailrace.key.omitted']} bytes")
        if "tailrace.headers.omitted" in self.details:
            what = "columns" if self.consumer is None else "headers"
            raise self._incomplete(f"does not contain these {what}: {self.details['tailrace.headers.omitted']}")

    def _incomplete(self, what: str) -> Rejected:
        return Rejected(
            Reason.PERMANENT_FAILURE,
            f"the dead letter {what}, so the event is incomplete",
            remedy="Have the service write the event to the outbox again, then discard the dead letter.",
        )


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """A filter: each condition that is given must hold. Types and keys are shell patterns."""

    reasons: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    def __bool__(self) -> bool:
        return self != DeadLetterFilter()

    def matches(self, letter: DeadLetter) -> bool:
        return (
            (not self.reasons or letter.reason in self.reasons)
            and _passes(letter.type or "", self.types)
            and _passes(letter.key_text or "", self.keys)
            and (self.since_ms is None or letter.committed_ms >= self.since_ms)
            and (self.until_ms is None or letter.committed_ms < self.until_ms)
        )


def _passes(value: str, patterns: Iterable[str]) -> bool:
    patterns = tuple(patterns)
    return not patterns or any(fnmatchcase(value, pattern) for pattern in patterns)


def _values(value: bytes, names: list[str]) -> tuple[bytes | None, ...]:
    """The columns of a row that was written as JSON, in the order of `names`."""
    try:
        found = orjson.loads(value)
    except ValueError as error:
        raise _no_row(f"is not JSON: {error}") from None
    if not isinstance(found, dict) or set(found) != set(names):
        raise _no_row(f"must be an object with exactly these fields: {', '.join(names)}")
    return tuple(_bytes(found[name], name) for name in names)


def _bytes(value: object, column: str) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error:
            pass  # reported below
    raise _no_row(f'has neither text, nor null, nor {{"base64": …}} in the column {column!r}')


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()


def _no_row(what: str) -> Rejected:
    return Rejected(
        Reason.POISON_MESSAGE,
        f"the row {what}",
        remedy="Give every column as Postgres writes it, as text; see `tailrace dlq show`.",
    )


def _text(value: str | bytes | None) -> str:
    return value if isinstance(value, str) else (value or b"").decode(errors="backslashreplace")
