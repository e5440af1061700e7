"""Selects events by type, key, topic, id and commit time. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from tailrace.errors import Rejected
from tailrace.event import OutboxEvent, Route, Row
from tailrace.outbox.layouts import Layout


@dataclass(frozen=True, slots=True)
class Selection:
    """All given conditions must hold. Types, keys and topics are shell patterns; times are Unix milliseconds, from the
    first up to but not including the second.
    """

    types: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def is_partial(self) -> bool:
        """Whether there are conditions other than the time."""
        return bool(self.types or self.keys or self.topics or self.ids)

    def is_within(self, committed_ms: int) -> bool:
        return (self.since_ms is None or committed_ms >= self.since_ms) and (
            self.until_ms is None or committed_ms < self.until_ms
        )

    def takes(self, event_id: str, type_name: str, key: bytes | None, topic: str | None) -> bool:
        """Checks all conditions but the time. `topic` is None for an event that is not published."""
        return (
            (not self.ids or event_id in self.ids)
            and _meets(type_name, self.types)
            and _meets((key or b"").decode(errors="backslashreplace"), self.keys)
            and _meets(topic or "", self.topics)
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Selection:
        """Raises KeyError, TypeError or ValueError if it is not a selection."""

        def words(name: str) -> tuple[str, ...]:
            return tuple(map(str, told[name]))

        since, until = (None if told[name] is None else int(told[name]) for name in ("since_ms", "until_ms"))
        return cls(words("types"), words("keys"), words("topics"), words("ids"), since, until)


def chooser(selection: Selection, layout: Layout, route: Callable[[OutboxEvent], Route]) -> Callable[[Row], bool]:
    """Returns a function that says whether a row is selected.

    A row that cannot be decoded has no type, key, topic or id; it is selected only if none of these is given.
    """

    def wants(row: Row) -> bool:
        if not selection.is_within(row.committed_ms):
            return False
        if not selection.is_partial:
            return True
        try:
            event = layout.read(row)
        except Rejected:
            return False
        topic = _topic(event, route) if selection.topics else None
        return selection.takes(event.id, event.type, event.key, topic)

    return wants


def _topic(event: OutboxEvent, route: Callable[[OutboxEvent], Route]) -> str | None:
    try:
        return route(event).topic
    except Rejected:
        return None


def _meets(value: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatchcase(value, pattern) for pattern in patterns)
