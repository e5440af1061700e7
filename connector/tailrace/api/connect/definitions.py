"""Config definitions of the connector classes, in Connect's form, made from the settings model.

Consoles build forms from them: each key has a type, a group, an order, a width and a display name.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from tailrace.config.connector import KINDS
from tailrace.config.debezium_keys import MONGO, POSTGRES
from tailrace.config.debezium_reference import DEBEZIUM_KEYS
from tailrace.config.definitions import SettingDefinition, definitions
from tailrace.config.flat import flatten_value
from tailrace.config.framework_keys import CONVERTERS
from tailrace.config.secrets import Secret
from tailrace.config.sources import MONGO_ONLY, POSTGRES_ONLY

_TYPES = {bool: "BOOLEAN", int: "INT", float: "DOUBLE", list: "LIST", Secret: "PASSWORD"}
_WIDTHS = {"BOOLEAN": "SHORT", "INT": "SHORT", "DOUBLE": "SHORT", "LIST": "LONG", "PASSWORD": "LONG"}
_BIG = ("kafka.bootstrap", "source.table", "source.collection", "source.postgres", "source.mongo", "topics.template")
_MEDIUM = ("source", "outbox", "schemas", "topics", "kafka", "format", "on_invalid")

_COMMON_VALUES = {
    "connector.class": tuple(KINDS),
    "tasks.max": ("1",),
    "key.converter": CONVERTERS,
    "value.converter": CONVERTERS,
    "errors.tolerance": ("none", "all"),
}

Definition = dict[str, Any]


@cache
def common() -> tuple[Definition, ...]:
    """The keys that every connector has."""
    rows = (
        ("name", "STRING", True, None, "HIGH", "Name of the pipeline: a-z, 0-9, _ and -, at most 48 characters."),
        ("connector.class", "STRING", True, None, "HIGH", "Class of the connector."),
        ("tasks.max", "INT", False, "1", "LOW", "A pipeline always has one task."),
        ("key.converter", "CLASS", False, None, "LOW", "Converter of keys; better set `format.key`."),
        ("value.converter", "CLASS", False, None, "LOW", "Converter of values; better set `format.value`."),
        ("errors.tolerance", "STRING", False, None, "LOW", "Sets `on_invalid`: none is halt, all is dead_letter."),
    )
    return tuple(
        definition(name, kind, required=needed, default=default, importance=rank, text=text, group="Common", order=n)
        for n, (name, kind, needed, default, rank, text) in enumerate(rows, 1)
    )


@cache
def of_class(name: str, bootstrap: str = "") -> tuple[Definition, ...]:
    """The keys of a connector class, without the common ones. `bootstrap` are the worker's brokers."""
    settings = _settings(KINDS[name], bootstrap)
    if name not in (POSTGRES, MONGO):
        return settings
    own = tuple(
        definition(key.name, key.type, required=key.required, default=key.default, importance=key.importance,
                   text=key.text, group="Debezium", order=order)
        for order, key in enumerate(DEBEZIUM_KEYS[name], 1)
    )  # fmt: skip
    # The same things may be given under both names, so none of Tailrace's is required.
    return (*own, *({**each, "required": False} for each in settings))


def recommended(name: str) -> list[str]:
    """Returns the only values that a key may have; empty if there are others."""
    if name in _COMMON_VALUES:
        return list(_COMMON_VALUES[name])
    found = next((each for each in definitions() if each.name == name), None)
    if found is not None and found.kind is bool:
        return ["true", "false"]
    return list(found.choices) if found is not None else []


def free_key(name: str) -> Definition:
    """The definition of a key below a map, such as `kafka.settings.linger.ms`, or of an unknown one."""
    section = name.partition(".")[0]
    is_map = name.startswith(("kafka.settings.", "schemas.registry.settings.", "archive.options."))
    text = "A setting of the client." if is_map else ""
    known = {each.name.partition(".")[0] for each in definitions()}
    group = _group(name) if section in known else "Other"
    return definition(name, "STRING", required=False, default=None, importance="LOW", text=text, group=group, order=0)


@cache
def _settings(kind: str, bootstrap: str) -> tuple[Definition, ...]:
    foreign = {"postgres": ("mongo", *MONGO_ONLY), "mongo": ("postgres", *POSTGRES_ONLY)}[kind]
    left_out = tuple(f"source.{name}" for name in foreign)
    found, orders = [], dict[str, int]()
    for setting in definitions():
        if setting.name == "pipeline" or setting.name.startswith(left_out):
            continue
        group = _group(setting.name)
        orders[group] = orders.get(group, 0) + 1
        found.append(_definition(setting, kind, bootstrap, group, orders[group]))
    return tuple(found)


def _definition(setting: SettingDefinition, kind: str, bootstrap: str, group: str, order: int) -> Definition:
    default = None if setting.default in (None, "", (), {}) else flatten_value(setting.default)
    required = setting.required or setting.name == f"source.{kind}"
    if setting.name == "kafka.bootstrap" and bootstrap:
        required, default = False, bootstrap
    text = setting.meaning
    if setting.expected:
        text = f"{text} Expected: {setting.expected}."
    if setting.kind is dict:
        text = f"{text} As JSON, or one key for each entry: {setting.name}.<name>."
    section = setting.name.partition(".")[0]
    importance = "HIGH" if required or setting.name in _BIG else "LOW"
    if importance == "LOW" and section in _MEDIUM and setting.name.count(".") <= 1:
        importance = "MEDIUM"
    return definition(
        setting.name,
        _TYPES.get(setting.kind, "STRING"),
        required=required,
        default=default,
        importance=importance,
        text=text.strip(),
        group=group,
        order=order,
    )


def definition(
    name: str, kind: str, *, required: bool, default: str | None, importance: str, text: str, group: str, order: int
) -> Definition:
    """One ConfigKeyInfo of Connect."""
    return {
        "name": name,
        "type": kind,
        "required": required,
        "default_value": default,
        "importance": importance,
        "documentation": text,
        "group": group,
        "width": _WIDTHS.get(kind, "MEDIUM"),
        "display_name": _display(name),
        "dependents": [],
        "order": order,
    }


def _group(name: str) -> str:
    section, dot, _ = name.partition(".")
    return section.replace("_", " ").capitalize() if dot else "Pipeline"


def _display(name: str) -> str:
    words = re.split(r"[._]", name)
    known = {"postgres": "PostgreSQL", "mongo": "MongoDB", "kafka": "Kafka", "url": "URL", "id": "id"}
    shown = " ".join(known.get(word, word) for word in words)
    return shown[:1].upper() + shown[1:]
