"""TopicSpec: a topic as the user declares it, and which events go there.

    topic: shop.orders
    match: {type: ["Order*"], aggregate: order}
    partitions: 3
    replication: 1
    config: {retention.ms: 604800000, cleanup.policy: delete}

`match` takes shell patterns (`*`, `?`, `[abc]`), case-sensitive; when both are given both must match. A spec
without `match` only describes a topic and attracts no event. Pure: it is given what a YAML loader returned.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.errors import ConfigError
from tailrace.routing.names import topic_flaw

BROKER_DEFAULT = -1
"""Kafka's own word for "as many as the brokers are set to"."""
MAX_PARTITIONS = 100_000
MAX_REPLICATION = 32_767

_FIELDS = ("topic", "match", "partitions", "replication", "config")
_MATCH_FIELDS = ("type", "aggregate")


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A declared topic. With neither `types` nor `aggregates` it attracts no event."""

    topic: str
    partitions: int = BROKER_DEFAULT
    replication: int = BROKER_DEFAULT
    config: dict[str, str] = field(default_factory=dict)
    types: tuple[str, ...] = ()
    aggregates: tuple[str, ...] = ()


def parse_spec(document: object, file: str) -> TopicSpec:
    """The spec that a YAML document of `file` declares; ConfigError names the field that is wrong."""
    fields = _mapping(document, file, "the file", _FIELDS)
    topic = fields.get("topic")
    if not isinstance(topic, str):
        raise _wrong(file, "topic", "is missing" if topic is None else f"must be a text, not {_kind(topic)}")
    if flaw := topic_flaw(topic):
        raise _wrong(file, "topic", f"{topic[:80]!r} is not a topic's name: {flaw}")
    types: tuple[str, ...] = ()
    aggregates: tuple[str, ...] = ()
    if "match" in fields:
        match = _mapping(fields["match"], file, "match", _MATCH_FIELDS)
        if not match:
            raise _wrong(file, "match", "is empty", 'Write `match: {type: "*"}` for every event, or leave it out.')
        types = _patterns(match, "type", file)
        aggregates = _patterns(match, "aggregate", file)
    return TopicSpec(
        topic,
        _count(fields, "partitions", MAX_PARTITIONS, file),
        _count(fields, "replication", MAX_REPLICATION, file),
        _config(fields.get("config", {}), file),
        types,
        aggregates,
    )


def _mapping(value: object, file: str, name: str, allowed: tuple[str, ...]) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _wrong(file, name, f"must be a mapping of fields, not {_kind(value)}")
    for key in value:
        if key not in allowed:
            near = difflib.get_close_matches(str(key), allowed, 1)
            hint = f"Did you mean `{near[0]}`?" if near else f"The fields are: {', '.join(allowed)}."
            where = str(key) if name == "the file" else f"{name}.{key}"
            raise _wrong(file, where[:80], "is not a field", hint)
    return value


def _patterns(match: Mapping[str, object], name: str, file: str) -> tuple[str, ...]:
    if name not in match:
        return ()
    given = match[name]
    listed = given if isinstance(given, list) else [given]
    if not listed:
        raise _wrong(file, f"match.{name}", "is an empty list", "Leave the field out, or name at least one pattern.")
    for pattern in listed:
        if not isinstance(pattern, str) or not pattern:
            what = "an empty text" if pattern == "" else _kind(pattern)
            raise _wrong(file, f"match.{name}", f"must be a pattern or a list of patterns, not {what}")
    return tuple(listed)


def _count(fields: Mapping[str, object], name: str, most: int, file: str) -> int:
    value = fields.get(name, BROKER_DEFAULT)
    # A bool is an int to Python, and `partitions: yes` is a mistake.
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(file, name, f"must be a whole number, not {_kind(value)}")
    if value != BROKER_DEFAULT and not 1 <= value <= most:
        raise _wrong(
            file,
            name,
            f"must be between 1 and {most:,}, not {value}",
            "Leave it out for the brokers' default.",
        )
    return value


def _config(value: object, file: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _wrong(file, "config", f"must be a mapping of topic settings, not {_kind(value)}")
    config: dict[str, str] = {}
    for key, setting in value.items():
        if not isinstance(key, str):
            raise _wrong(file, "config", f"has a setting whose name is {_kind(key)}", "Put the name in quotes.")
        listed = setting if isinstance(setting, list) and setting else [setting]
        config[key] = ",".join(_setting(item, f"config.{key}", file) for item in listed)
    return config


def _setting(value: object, name: str, file: str) -> str:
    """A setting in Kafka's own spelling: YAML's true is `true`, its 604800000 the same digits."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    raise _wrong(file, name[:80], f"must be a text, a number or true/false, not {_kind(value)}")


def _wrong(file: str, name: str, what: str, remedy: str = "") -> ConfigError:
    return ConfigError(f"{file}: {name} {what}", remedy=remedy or f"Correct {name} in {file}.")


_KINDS: dict[type, str] = {
    type(None): "nothing",
    bool: "true/false",
    int: "a number",
    float: "a number",
    str: "a text",
    dict: "a mapping",
    list: "a list",
}


def _kind(value: object) -> str:
    return _KINDS.get(type(value), type(value).__name__)
