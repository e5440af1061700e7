"""Converts between nested settings, as in a pipeline's file, and the flat map of strings of Kafka Connect's REST API.

A key of the flat map is the path of a setting: `source.postgres`, `kafka.bootstrap`. Below a setting that is a map, the
rest of the key is the name: `kafka.settings.compression.type`. A list is written with commas or as JSON, and an empty
section or map as `{}`. Null stands for the default.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import yaml

from tailrace.config.model import PipelineSettings
from tailrace.config.problems import SettingProblem, section_of, unknown_setting
from tailrace.config.section import Section
from tailrace.errors import ConfigError
from tailrace.yaml_document import KeyPath, read_value

FlatConfig = Mapping[str, str | None]


def nest(flat: FlatConfig) -> tuple[dict[str, Any], list[SettingProblem]]:
    """Returns the nested settings, and the keys that are no settings. Values are validated by the model."""
    tree: dict[str, Any] = {}
    problems: list[SettingProblem] = []
    for key in sorted(flat):  # a section before what is below it
        text = flat[key]
        if text is None:
            continue
        place, kind = _place(key)
        if place is None:
            problems.append(unknown_setting(tuple(key.split("."))))
            continue
        try:
            _put(tree, place, _parsed(text, kind))
        except ValueError as error:
            problems.append(SettingProblem(place, "is wrong: expected " + str(error), "correct the value of " + key))
    return tree, problems


def flatten(tree: Mapping[str, Any]) -> dict[str, str]:
    """Returns nested settings as a flat map. Settings without a value are left out."""
    return dict(_flat(tree, PipelineSettings, ""))


def setting_type(annotation: object) -> type:
    """Returns what a value is at heart: a section, `list`, `dict`, `bool`, `int`, `float` or `str`."""
    origin, options = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return setting_type(options[0])
    if origin in (Union, types.UnionType):
        given = [option for option in options if option is not type(None)]
        return setting_type(given[0]) if len(given) == 1 else str
    if origin in (tuple, list):
        return list
    if origin is dict:
        return dict
    if isinstance(annotation, type) and (annotation in (bool, int, float) or issubclass(annotation, Section)):
        return annotation
    return str


def value_type(annotation: object) -> type:
    """Returns the type of the values of a map."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return setting_type(get_args(annotation)[1])


def _place(key: str) -> tuple[KeyPath | None, type]:
    """Splits a key along the model; None if there is no such setting."""
    model: type[Section] = PipelineSettings
    place: list[str] = []
    rest = key
    while True:
        name, dot, rest = rest.partition(".")
        field = model.model_fields.get(name)
        if field is None:
            return None, str
        place.append(name)
        kind = setting_type(field.annotation)
        if not dot:
            return tuple(place), kind
        if kind is dict:
            return (*place, rest), value_type(field.annotation)
        section = section_of(field)
        if section is None:
            return None, str
        model = section


def _put(tree: dict[str, Any], place: KeyPath, value: object) -> None:
    for name in place[:-1]:
        tree = tree.setdefault(name, {})
    if isinstance(value, dict) and isinstance(tree.get(place[-1]), dict):
        tree[place[-1]].update(value)
    else:
        tree[place[-1]] = value


def _parsed(text: str, kind: type) -> object:
    """Reads one value. One that cannot be read as a number or a boolean stays a text, and the model refuses it."""
    bare = text.strip()
    if kind is list:
        return _list(bare)
    if kind is dict or issubclass(kind, Section):
        return _map(bare, kind)
    if kind is bool:
        return {"true": True, "false": False}.get(bare.lower(), bare)
    if kind in (int, float):
        try:
            return kind(bare) if bare.isascii() and "_" not in bare else bare
        except ValueError:
            return bare
    return text


def _list(text: str) -> list[str]:
    if not text.startswith("["):
        return [part.strip() for part in text.split(",")] if text else []
    found = _written(text)
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ValueError("a list of texts, separated by commas or as JSON")
    return found


def _map(text: str, kind: type) -> dict[str, Any]:
    found = _written(text) if text else {}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError("a JSON object")
    if found and kind is not dict:
        raise ValueError("nothing, because a section is given by its settings, such as `kafka.bootstrap`")
    return found


def _written(text: str) -> object:
    """Reads JSON, or YAML in one line such as `[created_at, id]`; returns None for anything else."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return read_value(text, "the value")
    except (yaml.YAMLError, ConfigError, ValueError, RecursionError):
        return None


def _flat(tree: Mapping[str, Any], model: type[Section], above: str) -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        key = f"{above}{name}"
        field = model.model_fields.get(str(name))
        section = section_of(field) if field is not None else None
        if section is not None and value is None:
            yield key, "{}"
        elif value is None:
            continue
        elif section is not None and isinstance(value, Mapping):
            if value:
                yield from _flat(value, section, f"{key}.")
            else:
                yield key, "{}"
        elif field is not None and setting_type(field.annotation) is dict and isinstance(value, Mapping):
            yield from ((f"{key}.{each}", flatten_value(inner)) for each, inner in value.items() if inner is not None)
            if not any(inner is not None for inner in value.values()):
                yield key, "{}"
        else:
            yield key, flatten_value(value)


def flatten_value(value: object) -> str:
    """Returns one value as a string of a flat map."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        texts = [item if isinstance(item, str) else flatten_value(item) for item in value]
        plain = all(text and text == text.strip() and "," not in text and text[0] != "[" for text in texts)
        return ",".join(texts) if plain else json.dumps(texts, ensure_ascii=False)
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)
    if isinstance(value, Path):
        return value.as_posix()
    return str(value)
