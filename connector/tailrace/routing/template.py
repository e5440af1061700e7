"""The topic template, for events that no rule matches: `outbox.event.{aggregate}`."""

from __future__ import annotations

import string

from tailrace.errors import ConfigError, Reason, Rejected
from tailrace.routing.names import topic_flaw

TEMPLATE_FIELDS = ("aggregate", "type", "stream")


class Template:
    """Checked when made; gives a topic's name or rejects the event."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.fields = _template_fields(text)

    def topic(self, aggregate: str, type_name: str, stream: str = "") -> str:
        values = {"aggregate": aggregate, "type": type_name, "stream": stream}
        empty = [name for name in self.fields if not values[name]]
        if empty:
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"no rule matches, and for the template {self.text!r} the event's {empty[0]} is empty",
                remedy=f"Have the service fill {empty[0]}, or add a topic spec that covers the event.",
            )
        topic = self.text.format(**values)
        if flaw := topic_flaw(topic):
            raise Rejected(
                Reason.PERMANENT_FAILURE,
                f"{topic[:80]!r}, from {self.text!r}, is not a topic's name: {flaw} "
                f"(type {type_name[:80]!r}, aggregate {aggregate[:80]!r})",
                remedy="Add a topic spec that covers the event, or change the template.",
            )
        return topic


def _template_fields(template: str) -> tuple[str, ...]:
    """The fields a template uses, after checking that it can give a legal name at all."""

    def wrong(what: str) -> ConfigError:
        return ConfigError(
            f"the topic template {template!r} {what}",
            why=f"A template is a topic's name with the fields {{{'}, {'.join(TEMPLATE_FIELDS)}}}.",
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
        # Only the bare name: {aggregate.__class__} or {type!r:>99} have no business in a topic's name.
        if name not in TEMPLATE_FIELDS or spec or conversion:
            raise wrong(f"has an unknown field {{{name}}}" if name not in TEMPLATE_FIELDS else "formats a field")
        fields.append(name)
    if flaw := topic_flaw(template.format(aggregate="a", type="t", stream="s")):
        raise wrong(f"cannot give a topic's name: {flaw}")
    return tuple(dict.fromkeys(fields))
