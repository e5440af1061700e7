"""The topic template for events that no rule matches, such as `outbox.event.{aggregate}`, and valid topic names."""

from __future__ import annotations

import re
import string

from tailrace.errors import ConfigError, Reason, Rejected

TEMPLATE_FIELDS = ("aggregate", "type", "stream")
TOPIC_CHARS = 249
"""Kafka's limit: a directory name of 255 characters, minus the partition suffix."""

_legal = re.compile(r"[a-zA-Z0-9._-]+").fullmatch


class Template:
    """A validated template; returns a topic name or rejects the event."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.fields = _template_fields(text)

    def topic(self, aggregate: str, type_name: str, stream: str = "") -> str:
        values = {"aggregate": aggregate, "type": type_name, "stream": stream}
        empty = [name for name in self.fields if not values[name]]
        if empty:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"no rule matches, and {empty[0]}, which the template {self.text!r} needs, is empty",
                remedy=f"Let the service set {empty[0]}, or add a topic spec that matches the event.",
            )
        topic = self.text.format(**values)
        if flaw := topic_flaw(topic):
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"{topic[:80]!r}, from {self.text!r}, is not a valid topic name: {flaw} "
                f"(type {type_name[:80]!r}, aggregate {aggregate[:80]!r})",
                remedy="Add a topic spec that matches the event, or change the template.",
            )
        return topic


def _template_fields(template: str) -> tuple[str, ...]:
    """Returns the fields of a template; raises ConfigError if it can never give a valid name."""

    def wrong(what: str) -> ConfigError:
        return ConfigError(
            f"the topic template {template!r} {what}",
            why=f"A template is a topic name with the fields {{{'}, {'.join(TEMPLATE_FIELDS)}}}.",
            remedy="Write it like outbox.event.{aggregate}.",
        )

    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise wrong(f"is malformed: {error}") from None
    fields: list[str] = []
    for _, name, spec, conversion in parsed:
        if name is None:
            continue
        # Only bare names: no {aggregate.__class__} and no {type!r:>99}.
        if name not in TEMPLATE_FIELDS or spec or conversion:
            raise wrong(f"has an unknown field {{{name}}}" if name not in TEMPLATE_FIELDS else "formats a field")
        fields.append(name)
    if flaw := topic_flaw(template.format(aggregate="a", type="t", stream="s")):
        raise wrong(f"cannot give a valid topic name: {flaw}")
    return tuple(dict.fromkeys(fields))


def topic_flaw(name: str) -> str | None:
    """Returns why a name is not a valid topic name, or None if it is."""
    if not name:
        return "it is empty"
    if len(name) > TOPIC_CHARS:
        return f"it has {len(name)} characters, Kafka allows {TOPIC_CHARS}"
    if name in {".", ".."}:
        return "Kafka reserves . and .."
    if name.startswith("__"):
        return "names that start with __ are internal topics of Kafka"
    if _legal(name) is None:
        return "only letters, digits, '.', '_' and '-' are allowed"
    return None
