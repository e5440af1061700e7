"""Parses a file of `topics/` into a TopicSpec. Errors name the file, the line and the field.

The input is the data of the YAML loader, with the lines of its fields.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping

from tailrace.errors import ConfigError
from tailrace.routing.patterns import Pattern, covers, glob, subject
from tailrace.routing.specs import BROKER_DEFAULT, MATCH_FIELDS, Rule, RuleCondition, SpecOrigin, TopicSpec
from tailrace.routing.template import topic_flaw

MAX_PARTITIONS = 100_000
MAX_REPLICATION = 32_767
MAX_PRIORITY = 1_000_000
MAX_MILLISECONDS = 2**63 - 1
"""Kafka stores durations as 64-bit numbers."""

_FIELDS = ("stream", "topic", "match", "key", "priority", "partitions", "replication", "retention", "config")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_EVERYTHING = "*"


class _Fields:
    """The fields of one mapping of the file, with their validation."""

    def __init__(
        self, value: object, origin: SpecOrigin, place: tuple[str, ...], allowed: tuple[str, ...] = ()
    ) -> None:
        """Without `allowed`, every text is a valid name."""
        self._origin, self._place = origin, place
        if not isinstance(value, dict):
            raise self.wrong("", f"must be a mapping of fields, not {_kind(value)}")
        for key in value:
            if not isinstance(key, str):
                raise self.wrong("", f"has a name that is {_kind(key)}: {str(key)[:80]}", "Put the name in quotes.")
            if allowed and key not in allowed:
                near = difflib.get_close_matches(key, allowed, 1)
                hint = f"Did you mean `{near[0]}`?" if near else f"The fields are: {', '.join(allowed)}."
                raise self.wrong(key, "is not a field", hint)
        self.given: Mapping[str, object] = value

    def wrong(self, name: str, what: str, remedy: str = "") -> ConfigError:
        place = (*self._place, name) if name else self._place
        name = ".".join(place)[:80] or "the file"
        where = self._origin.at(*place)
        return ConfigError(f"{where}: {name} {what}", remedy=remedy or f"Correct {name} in {where}.")

    def within(self, name: str, allowed: tuple[str, ...] = ()) -> _Fields:
        return _Fields(self.given[name], self._origin, (*self._place, name), allowed)

    def text(self, name: str) -> str | None:
        value = self.given.get(name)
        if name in self.given and (not isinstance(value, str) or not value):
            raise self.wrong(name, f"must be a text, not {_kind(value)}")
        return value if isinstance(value, str) else None

    def whole(self, name: str, default: int, least: int, most: int, hint: str) -> int:
        value = self.given.get(name, default)
        # Python treats booleans as integers, but `partitions: yes` is a mistake.
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(name, f"must be a whole number, not {_kind(value)}")
        if value != default and not least <= value <= most:
            raise self.wrong(name, f"must be between {least:,} and {most:,}, not {value}", hint)
        return value

    def texts(self, name: str) -> list[str]:
        """Returns the texts of a field that holds a text or a list of texts."""
        given = self.given[name]
        listed = given if isinstance(given, list) else [given]
        if not listed:
            raise self.wrong(name, "is an empty list", "Remove the field, or name at least one.")
        for item in listed:
            if not isinstance(item, str) or not item:
                raise self.wrong(name, f"must be a pattern or a list of patterns, not {_kind(item)}")
        return list(dict.fromkeys(listed))


def parse_spec(document: object, origin: SpecOrigin) -> TopicSpec:
    """Parses the content of a file; ConfigError names the line and the field that is wrong."""
    fields = _Fields(document, origin, (), _FIELDS)
    stream = fields.text("stream")
    topic = fields.text("topic")
    if topic is None:
        raise fields.wrong("topic", f"is missing{f', so the stream {stream} has no topic' if stream else ''}")
    for name, value in (("topic", topic), ("stream", stream)):
        if value is not None and (flaw := topic_flaw(value)):
            raise fields.wrong(name, f"{value[:80]!r} is not a valid {name} name: {flaw}")
    default = "Remove it to use the brokers' default."
    return TopicSpec(
        topic,
        fields.whole("partitions", BROKER_DEFAULT, 1, MAX_PARTITIONS, default),
        fields.whole("replication", BROKER_DEFAULT, 1, MAX_REPLICATION, default),
        _config(fields),
        _rule(fields),
        stream or "",
        origin,
    )


def _rule(fields: _Fields) -> Rule | None:
    key = fields.text("key")
    lower = "Write a smaller number; only the order of priorities matters."
    priority = fields.whole("priority", 0, -MAX_PRIORITY, MAX_PRIORITY, lower)
    match = fields.given.get("match")
    if "match" not in fields.given:
        for name in ("key", "priority"):
            if name in fields.given:
                raise fields.wrong(name, "has no effect: without `match` no event goes to this topic")
        return None
    if match == _EVERYTHING:
        if "priority" in fields.given:
            raise fields.wrong("priority", 'has no effect: `match: "*"` is tried last', "Remove the line.")
        return Rule(key=key, last=True)
    if not isinstance(match, dict):
        hint = 'Write `match: {type: "Order*"}`, or `match: "*"` for every event that no other rule matches.'
        raise fields.wrong("match", f"must be a mapping of conditions, not {_kind(match)}", hint)
    conditions = fields.within("match", MATCH_FIELDS)
    if not match:
        raise fields.wrong(
            "match", "is empty", 'Write `match: "*"` for every event that no other rule matches, or remove it.'
        )
    pipelines = tuple(conditions.texts("pipeline")) if "pipeline" in match else ()
    for name in pipelines:
        if not re.fullmatch(r"[a-z0-9_-]{1,48}", name):
            what = f"{name[:80]!r} is not a valid pipeline name"
            raise conditions.wrong("pipeline", what, "Write the names as in the files of the pipelines.")
    found = tuple(_conditions(conditions))
    _refuse_everything(conditions, found, pipelines)
    return Rule(found, pipelines, priority, key)


def _conditions(match: _Fields) -> list[RuleCondition]:
    found: list[RuleCondition] = []
    for name in match.given:
        if name == "column":
            columns = match.within("column")
            if not columns.given:
                raise match.wrong("column", "names no column", "Write it like `column: {tenant: eu-*}`.")
            found += [RuleCondition("column", _patterns(columns, column, glob), column) for column in columns.given]
        elif name != "pipeline":
            found.append(RuleCondition(name, _patterns(match, name, subject if name == "subject" else glob)))
    return found


def _patterns(fields: _Fields, name: str, parse: Callable[[str], Pattern]) -> tuple[Pattern, ...]:
    patterns: list[Pattern] = []
    for text in fields.texts(name):
        try:
            patterns.append(parse(text))
        except ValueError as error:
            raise fields.wrong(name, f"{text[:80]!r} {error}") from None
    return tuple(patterns)


def _refuse_everything(match: _Fields, conditions: tuple[RuleCondition, ...], pipelines: tuple[str, ...]) -> None:
    """Refuses a rule that matches every event: it must be written as `match: "*"`."""
    everything = [condition for condition in conditions if takes_everything(condition)]
    if not conditions or len(everything) < len(conditions):
        return
    remedy = 'If you mean that, write `match: "*"`: it matches what no other rule matches.'
    if pipelines:
        remedy = f"Remove {everything[0].name}: `pipeline` alone matches every event of these pipelines."
    raise match.wrong(everything[0].field, "matches every event, and there is no other condition", remedy)


def takes_everything(condition: RuleCondition) -> bool:
    """Whether one of its patterns alone matches every event. A column may be NULL, so `tenant: "*"` is a condition."""
    every = {"subject": subject(">"), "type": glob("?*")}.get(condition.field, glob("*"))
    return condition.field != "column" and any(covers(pattern, every) for pattern in condition.patterns)


def _config(fields: _Fields) -> dict[str, str]:
    config: dict[str, str] = {}
    if "config" in fields.given:
        settings = fields.within("config")
        for name, setting in settings.given.items():
            listed = setting if isinstance(setting, list) and setting else [setting]
            config[name] = ",".join(_setting(settings, name, item) for item in listed)
    if "retention" in fields.given:
        if "retention.ms" in config:
            raise fields.wrong("retention", "repeats config.retention.ms", "Keep one of the two.")
        config["retention.ms"] = _retention(fields)
    return config


def _setting(fields: _Fields, name: str, value: object) -> str:
    """Returns a setting in Kafka's spelling, such as `true` for YAML's true."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    raise fields.wrong(name, f"must be a text, a number or true/false, not {_kind(value)}")


def _retention(fields: _Fields) -> str:
    value = fields.given["retention"]
    if value == "forever":
        return "-1"
    found = re.fullmatch(r"([0-9]{1,19})(ms|s|m|h|d|w)", value) if isinstance(value, str) else None
    milliseconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < milliseconds <= MAX_MILLISECONDS:
        shown = repr(value[:80]) if isinstance(value, str) else _kind(value)
        what = f"must be a duration, not {shown}"
        raise fields.wrong("retention", what, "Write it like 7d (units: ms, s, m, h, d, w), or `forever`.")
    return str(milliseconds)


_KINDS: dict[type, str] = {
    type(None): "nothing",
    bool: "true or false",
    int: "a number",
    float: "a number",
    dict: "a mapping",
    list: "a list",
}


def _kind(value: object) -> str:
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    return _KINDS.get(type(value), type(value).__name__)
