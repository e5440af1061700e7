"""Events that a test has added, and how they differ from those that it expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any

import orjson

from tailrace.outbox.writer.event import PreparedEvent
from tailrace.schemas.strict_json import Json

SHOWN = 200
"""Characters of a value that are shown."""

Expected = Any
"""What a test expects: any value, also one that only compares like JSON, such as `unittest.mock.ANY`."""

_ABSENT = object()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RecordedEvent:
    """An event that was added. Equal to a pair of its type and payload, such as `("OrderPlaced", {"order": "o-1"})`.

    `payload` is the JSON value as consumers read it: dates and UUIDs are text. None is a tombstone.
    """

    type: str
    payload: Json
    aggregate: tuple[str, str]
    id: str
    key: str
    topic: str | None
    version: str | None
    aggregate_version: int | None
    traceparent: str | None
    extra: Mapping[str, Any]

    @classmethod
    def of(cls, event: PreparedEvent) -> RecordedEvent:
        return cls(
            event.type,
            None if event.payload is None else orjson.loads(event.payload),
            (event.aggregate, event.aggregate_id),
            event.id,
            event.key,
            event.topic,
            event.version,
            event.aggregate_version,
            event.traceparent,
            event.extra,
        )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RecordedEvent):
            return all(getattr(self, each.name) == getattr(other, each.name) for each in fields(self))
        if isinstance(other, tuple) and len(other) == 2:
            return bool((self.type, self.payload) == other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self.type} {_shown(self.payload)}"


class RecordedEvents(list[RecordedEvent]):
    """Recorded events in their order. Equal to a list of pairs of type and payload."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(event == wanted for event, wanted in zip(self, other, strict=True))

    __hash__ = None


def explain(left: object, right: object) -> list[str] | None:
    """Returns the lines that explain why recorded events are not what was expected; None for other values."""
    if isinstance(right, RecordedEvent | RecordedEvents) and not isinstance(left, RecordedEvent | RecordedEvents):
        left, right = right, left
    if isinstance(left, RecordedEvents) and isinstance(right, list | tuple):
        return [f"the outbox has {len(left)} events, expected {len(right)}", *_differences(left, right)]
    if isinstance(left, RecordedEvent) and isinstance(right, tuple | RecordedEvent):
        return ["the event is not the expected one", *_differences([left], [right])]
    return None


def _differences(events: Sequence[RecordedEvent], expected: Sequence[Expected]) -> Iterator[str]:
    for number, (event, wanted) in enumerate(zip_longest(events, expected, fillvalue=None), start=1):
        if event is None:
            yield f"{number}. missing: {_named(wanted)}"
        elif wanted is None:
            yield f"{number}. not expected: {event!r}"
        elif event == wanted:
            yield f"{number}. {event.type}: as expected"
        else:
            kind, payload = _pair(wanted)
            yield f"{number}. {event.type}" + (f", expected {kind}" if event.type != kind else ":")
            yield from (f"   {line}" for line in _value_differences("$", event.payload, payload))


def _value_differences(path: str, found: Json, wanted: Expected) -> Iterator[str]:
    """Yields a line for each part of a value that is not as wanted."""
    if found is _ABSENT:
        yield f"{path} is missing, expected {_shown(wanted)}"
    elif wanted is _ABSENT:
        yield f"{path} is {_shown(found)}, not expected"
    elif isinstance(found, dict) and isinstance(wanted, dict):
        for name in dict.fromkeys([*wanted, *found]):
            yield from _value_differences(f"{path}.{name}", found.get(name, _ABSENT), wanted.get(name, _ABSENT))
    elif isinstance(found, list) and isinstance(wanted, list):
        for index, (each, other) in enumerate(zip_longest(found, wanted, fillvalue=_ABSENT)):
            yield from _value_differences(f"{path}[{index}]", each, other)
    elif found != wanted:
        yield f"{path} is {_shown(found)}, expected {_shown(wanted)}"


def _pair(wanted: Expected) -> tuple[Expected, Expected]:
    if isinstance(wanted, RecordedEvent):
        return wanted.type, wanted.payload
    return wanted if isinstance(wanted, tuple) and len(wanted) == 2 else (wanted, _ABSENT)


def _named(wanted: Expected) -> str:
    kind, payload = _pair(wanted)
    return f"{kind}" if payload is _ABSENT else f"{kind} {_shown(payload)}"


def _shown(value: Expected) -> str:
    """Shows a value as JSON if it is JSON, cut."""
    try:
        text = orjson.dumps(value).decode()
    except TypeError:
        text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
