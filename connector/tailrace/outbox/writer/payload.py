"""Serialises a payload as JSON text; raises EventInvalid for everything that could never be published."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from enum import Enum
from math import isfinite
from typing import Any

import orjson

from tailrace.errors import EventInvalid
from tailrace.schemas.strict_json import NotJsonError, has_nul, parse

MAX_BYTES = 1_000_000
"""The connector's own default (`limits.payload_bytes`)."""
EXACT = 2**63
"""jsonb writes a float of this size or more as an integer, which is then beyond 64 bits."""

_NATIVE = frozenset({str, int, bool, type(None)})
_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS
_exponent = re.compile(rb"[0-9][eE]\+?[0-9]").search

Payload = Any
"""A JSON value, or an object that is converted to one."""
Default = Callable[[Payload], Payload]


class PayloadWriter:
    """Writes payloads. `default` returns a JSON value for an object of an unknown type, or raises TypeError."""

    def __init__(self, default: Default | None, max_bytes: int) -> None:
        self._own_default = default
        self._max_bytes = max_bytes

    def text(self, payload: Payload) -> bytes | None:
        """Returns the payload as JSON text. None is a tombstone; bytes are JSON text already."""
        if payload is None:
            return None
        text = self._given(payload) if isinstance(payload, bytes) else self._dumped(payload)
        if 92 in text and has_nul(text):
            raise EventInvalid(
                "a string of the payload contains U+0000",
                why="jsonb cannot store it, and many readers stop at it.",
                remedy="Remove the character before the event is added.",
            )
        if len(text) > self._max_bytes:
            raise self.too_large(len(text))
        return text

    def too_large(self, size: int) -> EventInvalid:
        return EventInvalid(
            f"the payload has {size:,} bytes, more than the limit of {self._max_bytes:,}",
            why="The connector would dead-letter it (limits.payload_bytes).",
            remedy="Publish a reference to the data instead, or raise max_bytes here, the limit there and in Kafka.",
        )

    def check_jsonb(self, text: bytes) -> None:
        """Raises EventInvalid if the text is not publishable once jsonb has rewritten it.

        jsonb writes a space after each comma and colon, and floats without an exponent.
        """
        if _exponent(text) and (number := _first(json.loads(text), _is_huge)) is not None:
            raise EventInvalid(
                f"the payload contains the number {number!r}",
                why="A jsonb column stores it as an integer beyond 64 bits, which readers cannot represent exactly.",
                remedy="Write the number as a string, or make the payload column json or text.",
            )
        if 2 * len(text) > self._max_bytes and len(text) + text.count(b",") + text.count(b":") > self._max_bytes:
            size = len(json.dumps(json.loads(text), ensure_ascii=False).encode())
            if size > self._max_bytes:
                raise self.too_large(size)

    def _given(self, text: bytes) -> bytes:
        try:
            parse(text)
        except NotJsonError as error:
            raise EventInvalid(
                f"the payload is not usable JSON: {error}",
                why="Bytes must be JSON text.",
                remedy="Correct the text, or give the value itself.",
            ) from None
        return text

    def _dumped(self, payload: Payload) -> bytes:
        try:
            text = orjson.dumps(payload, self._default, _OPTIONS)
        except TypeError as error:
            raise EventInvalid(
                f"the payload cannot be written as JSON: {error.__cause__ or error}",
                why="Payloads consist of objects with text keys, lists, text, numbers of up to 64 bits, booleans and "
                "null; dates, UUIDs, dataclasses and pydantic models are converted.",
                remedy="Convert the value, or give Outbox(default=…), a function that does.",
            ) from None
        # orjson writes NaN and infinities as null.
        if b"null" in text and _first(payload, _is_not_finite, self._default) is not None:
            raise EventInvalid(
                "the payload contains NaN or an infinity",
                why="JSON has no such numbers.",
                remedy="Write null or a string instead.",
            )
        return text

    def _default(self, value: Payload) -> Payload:
        if self._own_default is not None:
            try:
                return self._own_default(value)
            except TypeError:
                pass  # ours may know the type
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        if hasattr(value, "model_dump"):
            return value.model_dump(mode="json")
        raise TypeError(f"type is not JSON serializable: {type(value).__name__}")


def _is_not_finite(value: float) -> bool:
    return not isfinite(value)


def _is_huge(value: float) -> bool:
    return abs(value) >= EXACT


def _first(value: Payload, wanted: Callable[[float], bool], default: Default | None = None) -> float | None:
    """Returns the first float in `value` that is wanted, or None."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, float):
            if wanted(each):
                return each
        elif isinstance(each, dict):
            todo.extend(each.values())
        elif isinstance(each, list | tuple):
            todo.extend(each)
        elif isinstance(each, Enum):
            todo.append(each.value)
        elif default is not None and type(each) not in _NATIVE:
            try:
                todo.append(default(each))
            except TypeError:
                pass  # orjson writes it without help, and not as a number
    return None
