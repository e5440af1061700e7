"""A replay plan: the result of `plan` and the input of `apply`, as a JSON file that a person can read.

A plan is not edited, because its figures and positions belong together. It has a digest, and a changed plan is refused.
The progress of `apply` is stored in Kafka under the id of the plan.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from tailrace.errors import ConfigError, Rejected
from tailrace.event import OutboxEvent, Route, Row
from tailrace.outbox.layouts import Layout
from tailrace.positions.base import MALFORMED, Position, from_stored, to_stored
from tailrace.replay.estimate import Estimate

FORMAT = 1
ALPHABET = "bcdfghjkmnpqrstvwxz23456789"
"""Without characters that look like digits, and without vowels."""
ID_LENGTH = 6

Origin = Literal["log", "table", "archive"]
Target = Literal["same", "shadow", "in_place"]


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A replay plan. `start` and `end` are positions of the source. `settings` is the path of the pipeline's file,
    relative to the plan.
    """

    id: str
    pipeline: str
    settings: str
    made_ms: int
    origin: Origin
    target: Target
    suffix: str
    given: tuple[str, str]
    """--from and --to as the user gave them."""
    start: Position
    end: Position
    selection: Selection
    estimate: Estimate
    notes: tuple[str, ...] = ()
    consumers: tuple[dict[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """Its transactional id, and its key on the offsets topic."""
        return f"{self.pipeline}.replay-{self.id}"

    def to_json(self) -> dict[str, Any]:
        fields = {
            "format": FORMAT,
            "id": self.id,
            "pipeline": self.pipeline,
            "settings": self.settings,
            "made_at": datetime.fromtimestamp(self.made_ms / 1000, UTC).isoformat(timespec="milliseconds"),
            "source": self.origin,
            "target": self.target,
            "suffix": self.suffix,
            "from": {"given": self.given[0], "position": to_stored(self.start)},
            "to": {"given": self.given[1], "position": to_stored(self.end)},
            "selection": self.selection.to_json(),
            "figures": self.estimate.to_json(),
            "notes": list(self.notes),
            "consumers": list(self.consumers),
        }
        return {**fields, "digest": _digest(fields)}

    def write(self, file: Path) -> None:
        """Creates the file, readable by its owner only, since it names keys and ids. Raises ConfigError if it
        exists.
        """
        try:
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                out.write(json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n")
        except FileExistsError:
            raise ConfigError(f"{file} exists already", remedy="Give another file with --output.") from None
        except OSError as error:
            raise ConfigError(
                f"{file} cannot be written: {error.strerror}", remedy="Give another file with --output."
            ) from None


def new_id() -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(ID_LENGTH))


def read_plan(file: Path) -> ReplayPlan:
    try:
        fields = json.loads(file.read_text())
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}", remedy="Make a plan first: `tailrace replay plan --help`."
        ) from None
    except (ValueError, RecursionError):
        raise _no_plan(file, "it is not JSON") from None
    if not isinstance(fields, dict) or "digest" not in fields or "figures" not in fields:
        raise _no_plan(file, "parts of it are missing")
    if fields.get("format") != FORMAT:
        raise _no_plan(file, f"it has format {fields.get('format')}, but this version of Tailrace supports {FORMAT}")
    try:
        if fields.pop("digest") != _digest(fields):
            raise _no_plan(file, "it was changed since it was made, so its figures may be wrong")
        return _parsed(fields)
    except MALFORMED as error:
        raise _no_plan(file, f"it cannot be parsed ({error!r})") from None


def _parsed(fields: dict[str, Any]) -> ReplayPlan:
    return ReplayPlan(
        id=str(fields["id"]),
        pipeline=str(fields["pipeline"]),
        settings=str(fields["settings"]),
        made_ms=round(datetime.fromisoformat(fields["made_at"]).timestamp() * 1000),
        origin="table" if fields["source"] == "table" else "archive" if fields["source"] == "archive" else "log",
        target="same" if fields["target"] == "same" else "shadow" if fields["target"] == "shadow" else "in_place",
        suffix=str(fields["suffix"]),
        given=(str(fields["from"]["given"]), str(fields["to"]["given"])),
        start=from_stored(fields["from"]["position"]),
        end=from_stored(fields["to"]["position"]),
        selection=Selection.from_json(fields["selection"]),
        estimate=Estimate.from_json(fields["figures"]),
        notes=tuple(fields["notes"]),
        consumers=tuple(fields["consumers"]),
    )


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:32]


def _no_plan(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{file} is not a replay plan that can be applied: {why}",
        why="A plan is made by `tailrace replay plan` and must not be edited.",
        remedy="Make a new one: tailrace replay plan orders.yaml --from 2h. Nothing was changed.",
    )


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
    def from_json(cls, fields: dict[str, Any]) -> Selection:
        """Raises KeyError, TypeError or ValueError if it is not a selection."""

        def words(name: str) -> tuple[str, ...]:
            return tuple(map(str, fields[name]))

        since, until = (None if fields[name] is None else int(fields[name]) for name in ("since_ms", "until_ms"))
        return cls(words("types"), words("keys"), words("topics"), words("ids"), since, until)


def row_selector(selection: Selection, layout: Layout, route: Callable[[OutboxEvent], Route]) -> Callable[[Row], bool]:
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
