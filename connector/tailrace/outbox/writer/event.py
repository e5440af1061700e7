"""Events as a service describes them (NewEvent) and as they are written (PreparedEvent)."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from struct import unpack
from typing import Any, NamedTuple
from uuid import UUID

_is_traceparent = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
_random: list[int] = []
"""Random numbers for the next ids. A forked process must not use the same ones."""
_NO_EXTRA: Mapping[str, Any] = {}


@dataclass(slots=True)
class NewEvent:
    """One event for `Outbox.add_many`. The fields are the arguments of `Outbox.add`."""

    type: str
    payload: Any
    aggregate: tuple[str, str] | None = None
    id: str | UUID | None = None
    key: str | None = None
    topic: str | None = None
    version: int | str | None = None
    aggregate_version: int | None = None
    traceparent: str | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: _NO_EXTRA)


class PreparedEvent(NamedTuple):
    """A validated event; a layout turns it into a row. `payload` is JSON text, None for a tombstone."""

    id: str
    type: str
    aggregate: str
    aggregate_id: str
    key: str
    payload: bytes | None
    version: str | None
    time: datetime
    traceparent: str | None
    tracestate: str | None
    topic: str | None
    aggregate_version: int | None
    extra: Mapping[str, Any]
    id_given: bool


def uuid7() -> str:
    """Returns a UUID of version 7 (RFC 9562): milliseconds, their fraction in 12 bits, and 62 random bits."""
    milliseconds, nanoseconds = divmod(time.time_ns(), 1_000_000)
    fraction = (nanoseconds << 12) // 1_000_000
    try:
        random = _random.pop()
    except IndexError:
        random = _more_random()
    end = f"7{fraction:03x}-{0x8000 | random >> 50:04x}-{random & 0xFFFFFFFFFFFF:012x}"
    return f"{milliseconds >> 16:08x}-{milliseconds & 0xFFFF:04x}-{end}"


def _more_random() -> int:
    """Asks the system for random numbers of 64 bits in advance: one call takes as long as all the rest of an id."""
    _random.extend(unpack("256Q", os.urandom(2048)))
    return int.from_bytes(os.urandom(8), "big")


os.register_at_fork(after_in_child=_random.clear)


def trace_context(given: str | None) -> tuple[str | None, str | None]:
    """Returns traceparent and tracestate: the given traceparent, or those of OpenTelemetry's current span.

    OpenTelemetry is only asked if the service has imported it. A malformed traceparent is ignored, as W3C demands:
    services pass on what came in a request.
    """
    if given is not None:
        return (given, None) if _is_traceparent(given) else (None, None)
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None, None
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None, None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}", span.trace_state.to_header() or None
