"""Turns pydantic's validation errors into messages with file, line, expectation and remedy.

All problems are reported at once. A given value is shown only for settings that cannot hold a secret, and as it was
written: a resolved reference never appears.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tailrace.config.model import SECRET_PLACES, PipelineSettings
from tailrace.config.secrets import hide_passwords, mask
from tailrace.config.section import Section
from tailrace.errors import ConfigError
from tailrace.yaml_document import KeyPath

_SHOWN = 60
"""Longer values are cut."""


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """One invalid setting: what is wrong, and what to do."""

    place: KeyPath
    what: str
    remedy: str


def config_error(
    file: Path,
    problems: list[SettingProblem],
    lines: dict[KeyPath, int],
    origins: dict[KeyPath, str],
    then: str = "run `tailrace check`",
) -> ConfigError:
    """Combines all problems into one error; each names the file, the line or the variable, and the setting."""

    def located(problem: SettingProblem) -> str:
        line = next((lines[place] for place in _upwards(problem.place) if place in lines), None)
        origin = next((origins[place] for place in _upwards(problem.place) if place in origins), None)
        where = f"{file} (from {origin})" if origin else f"{file}:{line}" if line else str(file)
        return f"{where}: {'.'.join(problem.place) or 'the file'} {problem.what}"

    if len(problems) == 1:
        return ConfigError(mask(located(problems[0])), remedy=mask(_sentence(problems[0].remedy)))
    listed = "".join(f"\n    {located(p)}\n      remedy: {_sentence(p.remedy)}" for p in problems)
    return ConfigError(
        f"{file} has {len(problems)} problems",
        why=mask(listed),
        remedy=f"Correct all of them, then {then}.",
    )


def found_problems(
    error: ValidationError,
    written: dict[str, Any],
    root: type[Section] = PipelineSettings,
    secret_places: Sequence[KeyPath] = SECRET_PLACES,
) -> list[SettingProblem]:
    """Translates pydantic's errors; `written` is the file's data before references were resolved."""
    details = error.errors(include_url=False, include_input=True)
    return [_problem(detail, written, root, secret_places) for detail in details]


def field_at(place: KeyPath, root: type[Section] = PipelineSettings) -> FieldInfo | None:
    """Returns the declaration of a setting, or None if there is no such setting."""
    model: type[Section] | None = root
    found: FieldInfo | None = None
    entries: type[Section] | None = None
    for name in place:
        if entries is not None:  # `name` is that of an entry of a map
            model, entries = entries, None
            continue
        if model is None:
            return found if found is not None and found.annotation is not None and name.isdigit() else None
        found = model.model_fields.get(name)
        if found is None:
            return None
        model, entries = section_of(found), entry_section(found)
    return found


def entry_section(field: FieldInfo) -> type[Section] | None:
    """Returns the model of the entries of a field that is a map of sections."""
    options = get_args(field.annotation) if get_origin(field.annotation) is dict else ()
    return next((o for o in options if isinstance(o, type) and issubclass(o, Section)), None)


def section_of(field: FieldInfo) -> type[Section] | None:
    """Returns the model of a field that is a section."""
    annotation = field.annotation
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, Section)), None)


def _problem(
    detail: ErrorDetails, written: dict[str, Any], root: type[Section], secret_places: Sequence[KeyPath]
) -> SettingProblem:
    place = tuple(str(part) for part in detail["loc"] if part != "[key]")
    field, kind, leaf = field_at(place, root), detail["type"], place[-1] if place else ""

    def given(at: KeyPath) -> str:
        return _given(at, written, root, secret_places)

    if kind == "extra_forbidden":
        return unknown_setting(place, root)
    if kind == "tailrace":
        context = detail.get("ctx", {})
        place = context["place"] or place
        return SettingProblem(place, f"{given(place)}expected {context['expected']}", context["remedy"])
    expected = field.description if field and field.description else "a known setting"
    example = f"{leaf}: {field.examples[0]}" if field and field.examples else ""
    if kind == "missing":
        under = f" under `{'.'.join(place[:-1])}:`" if len(place) > 1 else ""
        return SettingProblem(place, f"is missing: expected {expected}", f"add `{example}`{under}")
    if not example:
        return SettingProblem(place, f"{given(place)}expected {expected}", "remove it, or correct the name")
    return SettingProblem(place, f"{given(place)}expected {expected}", f"write it like `{example}`")


def unknown_setting(place: KeyPath, root: type[Section] = PipelineSettings) -> SettingProblem:
    """Reports an unknown setting without its value, which may be a misspelt password."""
    parent = field_at(place[:-1], root)
    model = ((section_of(parent) or entry_section(parent)) if parent else None) or root
    known = list(model.model_fields)
    close = difflib.get_close_matches(place[-1].lower().replace("-", "_"), known, n=1)
    elsewhere = [".".join(path) for path in all_places(root) if path[-1] == place[-1]]
    if close:
        remedy = f"did you mean `{close[0]}`?"
    elif elsewhere:
        remedy = f"did you mean `{elsewhere[0]}`? Move it there"
    else:
        remedy = "remove it, or correct the name"
    return SettingProblem(place, f"is not a setting: expected one of {', '.join(known)}", remedy)


def all_places(model: type[Section] = PipelineSettings, above: KeyPath = ()) -> Iterator[KeyPath]:
    for name, field in model.model_fields.items():
        yield (*above, name)
        section = section_of(field)
        if section is not None:
            yield from all_places(section, (*above, name))


def _given(place: KeyPath, written: dict[str, Any], root: type[Section], secret_places: Sequence[KeyPath]) -> str:
    if not place:
        return "is inconsistent: "
    value: object = written
    for depth, name in enumerate(place, 1):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return "is missing: " if depth == len(place) else "is wrong: "
    field = field_at(place, root)
    is_section = field is not None and section_of(field) is not None
    if value is None:
        return "is given without a value: "
    if is_section or any(place[: len(secret)] == secret for secret in secret_places) or field is None:
        return "is wrong: "
    if isinstance(value, list | dict):
        return f"is {'a list' if isinstance(value, list) else 'a mapping'}: "
    shown = hide_passwords(str(value))
    return f"is {shown[:_SHOWN]!r}{'…' if len(shown) > _SHOWN else ''}: "


def _upwards(place: KeyPath) -> list[KeyPath]:
    """The place and its parents: a missing setting has no line, but its section has one."""
    return [place[:length] for length in range(len(place), 0, -1)]


def _sentence(text: str) -> str:
    ended = text if text.endswith(("?", ".")) else f"{text}."
    return ended[:1].upper() + ended[1:]
