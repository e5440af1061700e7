"""Loads and validates the settings of a pipeline; raises one error that lists everything that is wrong.

Steps: read the file, apply `TAILRACE_<SECTION>__<FIELD>` variables, resolve references, validate with the model. A
variable is a setting only if its first part is a section or a setting; other variables that begin with `TAILRACE_`
(failpoints, addresses of the local stack, logging) are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tailrace.config.model import SECRET_PLACES, PipelineSettings
from tailrace.config.problems import SettingProblem, config_error, field_at, found_problems, section_of
from tailrace.config.references import UnresolvedError, has_reference, resolve
from tailrace.config.secrets import Secret, fit_connection
from tailrace.config.section import Section
from tailrace.yaml_document import ExpectedContent, KeyPath, YamlDocument, read_document, read_value

PREFIX = "TAILRACE_"
ADDRESSES = (("source", "postgres"), ("source", "mongo"))
"""A referenced password in these is escaped as its place in the address needs."""
_LISTS = (("source", "order_by"), ("source", "collection"), ("outbox", "columns"), ("kafka", "settings"))
"""Settings with several values: their variables are parsed as YAML (`[created_at, id]`)."""

PIPELINE_FILE = ExpectedContent(
    name="a pipeline",
    setting="pipeline: orders",
    if_absent="Correct the path, or create a first pipeline with `tailrace init`.",
    if_empty="Write a pipeline into it, or create one with `tailrace init`.",
    if_other="Start from the file that `tailrace init` writes.",
)


def load_pipeline(path: Path | str, environ: Mapping[str, str] | None = None) -> PipelineSettings:
    """Loads and validates a pipeline's file. ConfigError lists every problem with its line and remedy."""
    file, environ = Path(path), os.environ if environ is None else environ
    document, origins, problems = _read(file, environ)
    pipeline, invalid = validate_settings(document.data, file.absolute().parent, environ, problems)
    if pipeline is None:
        raise config_error(file, invalid, document.lines, origins) from None
    return pipeline


def read_settings(path: Path | str, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the settings of a file with those of the environment, not validated, and with unresolved references."""
    return _read(Path(path), os.environ if environ is None else environ)[0].data


def _read(file: Path, environ: Mapping[str, str]) -> tuple[YamlDocument, dict[KeyPath, str], list[SettingProblem]]:
    document = read_document(file, PIPELINE_FILE)
    _fill_empty_sections(document.data)
    return document, *_override(document, environ)


def validate_settings(
    data: dict[str, Any], folder: Path, environ: Mapping[str, str], known: Sequence[SettingProblem] = ()
) -> tuple[PipelineSettings | None, list[SettingProblem]]:
    """Resolves references and validates nested settings; returns None and all problems if there are any."""
    problems = list(known)
    tree = _resolved(data, (), environ, folder, problems)
    try:
        pipeline = PipelineSettings.model_validate(tree, context={"folder": folder})
    except ValidationError as error:
        # A setting whose reference failed has its message already.
        reported = {problem.place for problem in problems}
        return None, [*problems, *(p for p in found_problems(error, data) if p.place not in reported)]
    if problems:
        return None, problems
    _remember_written(pipeline, data)
    return pipeline, []


def _fill_empty_sections(data: dict[str, Any]) -> None:
    """Gives sections without content (all lines commented out) their defaults: `schemas:` still validates."""
    for name, value in data.items():
        field = field_at((str(name),))
        if value is None and field is not None and section_of(field) is not None:
            data[name] = {}


def _override(document: YamlDocument, environ: Mapping[str, str]) -> tuple[dict[KeyPath, str], list[SettingProblem]]:
    """Applies variables to the file's data; returns which setting came from which variable."""
    origins: dict[KeyPath, str] = {}
    problems: list[SettingProblem] = []
    for variable in sorted(environ):
        place = _place_of(variable)
        if place is None:
            continue
        origins[place] = variable
        value: object = environ[variable]
        if place in _LISTS:
            try:
                value = read_value(environ[variable], variable)
            except (yaml.YAMLError, ValueError, RecursionError):
                problems.append(
                    SettingProblem(place, "is not valid YAML", f"write {variable} as one line of YAML, such as [a, b]")
                )
                continue
        section: object = document.data
        for name in place[:-1]:
            section = section.setdefault(name, {}) if isinstance(section, dict) else None
        if isinstance(section, dict):  # otherwise the section is wrong, and the model reports it
            section[place[-1]] = value
    return origins, problems


def _place_of(variable: str) -> KeyPath | None:
    """`TAILRACE_KAFKA__BOOTSTRAP` -> `("kafka", "bootstrap")`; None for variables that are not settings."""
    if not variable.startswith(PREFIX):
        return None
    parts = variable.removeprefix(PREFIX).lower().split("__")
    field = field_at((parts[0],))
    if field is None or (section_of(field) is None) != (len(parts) == 1):
        return None
    if parts[:2] == ["kafka", "settings"] and len(parts) > 2:
        # librdkafka's names have dots, which a variable's name cannot have.
        return (*parts[:2], "__".join(parts[2:]).replace("_", "."))
    return tuple(parts)


def _resolved(
    value: object, place: KeyPath, environ: Mapping[str, str], folder: Path, problems: list[SettingProblem]
) -> object:
    """Returns a copy of the data with references resolved; as `Secret` where a secret may be."""
    if isinstance(value, dict):
        return {k: _resolved(v, (*place, str(k)), environ, folder, problems) for k, v in value.items()}
    if isinstance(value, list):
        return [_resolved(v, (*place, str(i)), environ, folder, problems) for i, v in enumerate(value)]
    if not isinstance(value, str) or not has_reference(value):
        return value
    may_be_secret = any(place[: len(secret)] == secret for secret in SECRET_PLACES)
    try:
        if place in ADDRESSES:
            return Secret(value, resolve(value, environ, folder, fit_connection))
        plain = resolve(value, environ, folder)
    except UnresolvedError as error:
        problems.append(SettingProblem(place, f"cannot be resolved: {error.why}", error.remedy))
        return Secret(value, "") if may_be_secret else value
    return Secret(value, plain) if may_be_secret else plain


def _remember_written(section: Section, written: dict[str, Any]) -> None:
    """Makes every setting that contains a reference show the reference instead of its value."""
    for name, value in written.items():
        inner = getattr(section, name)
        if isinstance(inner, Section):
            _remember_written(inner, value)
        elif not isinstance(inner, Secret) and name not in ("settings", "headers", "options") and _refers(value):
            section.remember_written(name, deepcopy(value))


def _refers(value: object) -> bool:
    if isinstance(value, dict | list):
        return any(map(_refers, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and has_reference(value)
