"""Compares the records of Debezium and of a shadow, event by event. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

ONLY_SHADOW, ONLY_DEBEZIUM_TWICE = "not_published_by_debezium", "published_twice_by_debezium"
NOT_PUBLISHABLE = "dead_lettered_by_tailrace"
VALUE, VALUE_BYTES, KEY, PARTITION, HEADER, ORDER = "value", "value_formatting", "key", "partition", "header", "order"
DIFFERENT = (VALUE, KEY, PARTITION, HEADER, ORDER, NOT_PUBLISHABLE)
"""The kinds with which a cut-over would change what consumers get."""
IGNORED_HEADERS = ("__debezium.",)
EXAMPLES = 5


class SeenRecord(NamedTuple):
    """A record as a consumer sees it."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes | None]


@dataclass(slots=True)
class Comparison:
    """`counts` by kind, with a few ids of events for each. `added_headers` are ours alone."""

    events: int = 0
    same: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    added_headers: set[str] = field(default_factory=set)
    changed_headers: set[str] = field(default_factory=set)

    @property
    def is_same(self) -> bool:
        """Whether everything that Debezium has published was the same here."""
        return self.same > 0 and not self.is_different

    @property
    def is_different(self) -> bool:
        return any(self.counts[kind] for kind in DIFFERENT)

    def note(self, kind: str, event_id: str) -> None:
        self.counts[kind] += 1
        shown = self.examples.setdefault(kind, [])
        if len(shown) < EXAMPLES:
            shown.append(event_id)

    def compare(self, event_id: str, ours: SeenRecord, theirs: SeenRecord) -> None:
        """Notes what is different between two records of an event."""
        kinds: list[str] = []
        if ours.key != theirs.key:
            kinds.append(KEY)
        elif ours.key is not None and ours.partition != theirs.partition:
            kinds.append(PARTITION)
        if ours.value != theirs.value:
            kinds.append(VALUE_BYTES if _is_same_json(ours.value, theirs.value) else VALUE)
        placed = {name: value for name, value in theirs.headers.items() if not name.startswith(IGNORED_HEADERS)}
        changed = {name for name, value in placed.items() if ours.headers.get(name, b"\0absent") != value}
        self.changed_headers |= changed
        if changed:
            kinds.append(HEADER)
        self.added_headers |= ours.headers.keys() - theirs.headers.keys()
        for kind in kinds:
            self.note(kind, event_id)
        if not kinds or kinds == [VALUE_BYTES]:
            self.same += 1


def seen_record(message: Any) -> SeenRecord:  # noqa: ANN401 - typed loosely by the driver
    return SeenRecord(message.partition(), message.key(), message.value(), dict(message.headers() or []))


def event_id_of(message: Any) -> str | None:  # noqa: ANN401 - typed loosely by the driver
    """Returns the id of the event in a record; None if it has none."""
    for name, value in message.headers() or []:
        if name == "id" and value is not None:
            return str(value.decode("utf-8", "backslashreplace"))
    return None


def _is_same_json(one: bytes | None, other: bytes | None) -> bool:
    if one is None or other is None:
        return False
    try:
        return bool(orjson.loads(one) == orjson.loads(other))
    except ValueError:
        return False
