"""Describes every setting of a pipeline as data, for forms and for Kafka Connect's config definitions.

Names, types, defaults and examples come from the settings model, the meaning of a setting from the docstring below its
field. The same docstrings are in docs/configuration.md.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from tailrace.config.flat import setting_type
from tailrace.config.model import PipelineSettings
from tailrace.config.problems import section_of
from tailrace.config.secrets import Secret
from tailrace.config.section import Section


@dataclass(frozen=True, slots=True)
class SettingDefinition:
    """One setting: `kind` is str, int, float, bool, list, dict or Secret; `choices` are its only values, if any."""

    name: str
    kind: type
    required: bool
    default: Any
    meaning: str
    expected: str
    choices: tuple[str, ...] = ()
    example: str = ""


@cache
def definitions() -> tuple[SettingDefinition, ...]:
    """Returns all settings in the order of the model, without sections. A section that may be left out requires
    nothing.
    """
    return tuple(_of(PipelineSettings, "", required=True))


@cache
def meanings(section: type[Section]) -> dict[str, str]:
    """Returns the docstrings below the fields of a section, inherited ones included."""
    base = section.__base__
    found = dict(meanings(base)) if base is not None and issubclass(base, Section) and base is not Section else {}
    declared = ast.parse(inspect.getsource(section)).body[0]
    for pair in itertools.pairwise(getattr(declared, "body", [])):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def _of(section: type[Section], above: str, *, required: bool) -> Iterator[SettingDefinition]:
    texts = meanings(section)
    for name, field in section.model_fields.items():
        inner = section_of(field)
        if inner is not None:
            yield from _of(inner, f"{above}{name}.", required=required and field.is_required())
            continue
        yield SettingDefinition(
            f"{above}{name}",
            _kind(field),
            required and field.is_required(),
            None if field.is_required() else field.get_default(),
            texts.get(name, ""),
            field.description or "",
            _choices(field.annotation),
            str((field.examples or [""])[0]),
        )


def _kind(field: FieldInfo) -> type:
    options = (field.annotation, *get_args(field.annotation))
    is_secret = any(option is Secret or Secret in get_args(option) for option in options)
    found = setting_type(field.annotation)
    return Secret if is_secret and found is str else found


def _choices(annotation: object) -> tuple[str, ...]:
    for option in (annotation, *get_args(annotation)):
        if get_origin(option) is Literal:
            return tuple(map(str, get_args(option)))
    return ()
