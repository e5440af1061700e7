"""Formats dead letters for people and programs: as a table row, in full, and with what their schema expects."""

from __future__ import annotations

import ast
import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tailrace.cli.dlq.edit import indented
from tailrace.dlq.dead_letter import DeadLetter
from tailrace.dlq.parked_keys import FIRST
from tailrace.dlq.record import FOREIGN
from tailrace.dlq.resolutions import Resolution
from tailrace.errors import Rejected, TailraceError
from tailrace.event import Record

CUT = 60
"""Characters of an explanation in a table."""
PART = 200
"""Characters of the part of a payload that is shown next to what was expected."""

_PATH = r"\$(?:\.…|\.\w+|\[\d+\]|\['(?:[^'\\]|\\.)*'\]|\[\"(?:[^\"\\]|\\.)*\"\])*"
_broken = re.compile(rf"({_PATH}): expected (.*?), got (.*?)(?=; \$|; and more|$)", re.DOTALL).findall
_steps = re.compile(r"\.(\w+)|\[(\d+)\]|\[('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]").findall


def has_waiting_events(letter: DeadLetter, resolution: Resolution | None) -> bool:
    """Whether later events of its key wait behind it."""
    return resolution is None and FIRST in letter.details


def row(letter: DeadLetter, resolution: Resolution | None, *, with_state: bool) -> dict[str, object]:
    """A row of the table."""
    state: dict[str, object] = {"state": resolution.action if resolution else "open"} if with_state else {}
    return {
        "id": letter.id,
        **state,
        "when": local_time(letter.committed_ms),
        "reason": letter.reason,
        "type": _plain(letter.type),
        "key": f"{_plain(letter.key_text)} (parked)"
        if has_waiting_events(letter, resolution)
        else _plain(letter.key_text),
        "explanation": cut(printable(_in_short(letter.explanation)), CUT),
        "topic": _plain(letter.topic),
    }


def as_json(letter: DeadLetter, resolution: Resolution | None) -> dict[str, Any]:
    """A dead letter as JSON, without its payload."""
    return {
        "id": str(letter.id),
        "state": resolution.action if resolution else "open",
        "when": utc(letter.committed_ms),
        "reason": letter.reason,
        "parked": has_waiting_events(letter, resolution),
        "explanation": letter.explanation,
        "remedy": letter.remedy,
        "event_id": letter.event_id,
        "type": letter.type,
        "key": letter.key_text,
        "topic": letter.topic,
        "position": letter.position,
        "consumer": letter.consumer,
        "place": None if letter.consumer is None else letter.read_from,
        "attempts": letter.details.get("tailrace.attempts"),
        "mark": resolution.to_json() if resolution else None,
    }


def in_full(letter: DeadLetter, resolution: Resolution | None, now: dict[str, Any]) -> dict[str, Any]:
    """A dead letter as JSON, with headers and payload."""
    return {
        **as_json(letter, resolution),
        "headers": dict(letter.details),
        "payload_is": letter.kind,
        "payload": None if letter.kind == "null" else payload_as_json(letter.value),
        "now": now,
    }


def facts(letter: DeadLetter, resolution: Resolution | None) -> list[tuple[str, str]]:
    """Names and values to show above the payload."""
    details = letter.details
    size = f", {details['tailrace.payload.length']} bytes" if "tailrace.payload.length" in details else ""
    found = [
        ("dead letter", f"{letter.id}, {describe_resolution(resolution) if resolution else 'open'}"),
        ("committed", local_time(letter.committed_ms)),
        ("reason", letter.reason),
        ("explanation", letter.explanation),
        ("remedy", letter.remedy),
        ("position", letter.position),
        ("consumer", letter.consumer),
        ("attempts", details.get("tailrace.attempts")),
        ("read from", None if letter.consumer is None else letter.read_from),
        ("outbox id" if letter.consumer is None else "event id", letter.event_id),
        ("type", letter.type),
        ("aggregate", details.get("tailrace.aggregate")),
        ("version", details.get("tailrace.version")),
        ("key", letter.key_text),
        ("topic", letter.topic),
        ("payload", f"{letter.kind}{size}"),
    ]
    return [(name, printable(value)) for name, value in found if value]


def headers(letter: DeadLetter) -> list[tuple[str, str]]:
    """The headers, without those that repeat others under the names of other tools."""
    shown = [(name, value) for name, value in letter.details.items() if not name.startswith(FOREIGN)]
    return [(printable(name), cut(printable(value), PART)) for name, value in shown]


def payload_text(letter: DeadLetter) -> str:
    """The payload for a terminal: JSON indented, no control characters."""
    if letter.kind == "null":
        return "(NULL)"
    text = letter.value.decode(errors="backslashreplace")
    return "\n".join(printable(line) for line in indented(text).split("\n"))


def verdict(again: Callable[[DeadLetter], Record], letter: DeadLetter) -> dict[str, Any]:
    """Whether it would be published `again` now: `passes`, or why not, field by field."""
    try:
        made = again(letter)
    except Rejected as rejected:
        return {
            "passes": False,
            "reason": rejected.reason.value,
            "explanation": rejected.explanation,
            "remedy": rejected.remedy,
            "fields": _fields(rejected.explanation, letter),
        }
    return {"passes": True, "topic": made.topic}


def unknown(error: TailraceError) -> dict[str, Any]:
    """The same if a server that is needed for it is unavailable."""
    return {"passes": None, "explanation": f"{error.code}: {error.what}", "remedy": error.remedy}


def describe_resolution(resolution: Resolution) -> str:
    """`redriven to shop.orders by ann@host at …: because`."""
    where = f" to {resolution.topic}" if resolution.topic else ""
    where += f" (written again as {resolution.new_id})" if resolution.new_id else ""
    edited = ", edited" if resolution.edited else ""
    why = f": {resolution.why}" if resolution.why else ""
    return printable(
        f"{resolution.action}{where}{edited} by {resolution.by or '?'} at {local_time(resolution.at_ms)}{why}"
    )


def part_at(value: object, path: str) -> object:
    """The part of a payload that a path such as `$.items[2].price` names; LookupError if there is none."""
    if "…" in path:
        raise LookupError(path)
    for name, index, quoted in _steps(path):
        step = int(index) if index else ast.literal_eval(quoted) if quoted else name
        holder: Any = value if isinstance(value, list if index else dict) else {}
        value = holder[step]
    return value


def _fields(explanation: str, letter: DeadLetter) -> list[dict[str, str]]:
    """For each invalid field: what was expected, what was found, and that part of the payload."""
    try:
        value = json.loads(letter.value)
    except (ValueError, RecursionError):
        return []
    found: list[dict[str, str]] = []
    for path, expected, got in _broken(explanation):
        try:
            part = cut(json.dumps(part_at(value, path), ensure_ascii=False), PART)
        except (LookupError, ValueError, RecursionError):
            part = ""
        found.append({"field": path, "expected": expected, "found": got, "payload": part})
    return found


def payload_as_json(value: bytes) -> object:
    """The payload as JSON if it is JSON, else as text, else as base64."""
    try:
        found = json.loads(value)
        json.dumps(found, allow_nan=False)  # 1e999 is read as infinity, which JSON cannot express
    except (ValueError, RecursionError):
        pass
    else:
        return found
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def local_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def printable(text: str) -> str:
    """Escapes control characters, so that a payload cannot move the cursor."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _in_short(explanation: str) -> str:
    """The explanation from the field on; the type next to it already names the schema."""
    _, at, fields = explanation.partition(": $")
    return f"${fields}" if at else explanation


def _plain(text: str | None) -> str | None:
    return None if text is None else cut(printable(text), CUT)
