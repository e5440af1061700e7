"""Writes docs/configuration.md from the settings model.

A setting's type, default and bounds come from its field, its meaning from the docstring below it.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import annotated_types
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tailrace.config.definitions import meanings
from tailrace.config.model import PipelineSettings
from tailrace.config.secrets import Secret

BAR = r"\|"
HEAD = """\
# Configuration

<!-- Written by `make docs` from the settings model (connector/tailrace/config). Do not edit. -->

A pipeline is one YAML file. `tailrace init` writes a commented one; `tailrace check FILE` reports everything that is
wrong with it, each problem with its line and what to write instead. Unknown settings are refused.

- **References.** Any value may be `${env:NAME}`, `${file:/path}`, `${file:/path:key}` or `${dir:/path:file}`. Values
  that came through a reference are never shown in output; see [security.md](security.md#secrets).
- **Environment.** `TAILRACE_<SECTION>__<SETTING>` overrides the file: `TAILRACE_KAFKA__BOOTSTRAP=kafka:9092`. Lists are
  given as YAML (`[created_at, id]`). Settings of librdkafka have `_` for `.`: `TAILRACE_KAFKA__SETTINGS__LINGER_MS=10`.
- **Paths** are relative to the file.

## A complete example

Every setting of a Postgres pipeline, with its default where there is one. Most files need ten lines of it.
"""


LEFT_OUT = (
    "source.mongo", "source.collection", "source.rocksdb", "source.messages", "source.start_where", "source.auth",
    "kafka.auth.aws_iam", "kafka.auth.provider", "kafka.auth.options",
)  # fmt: skip
"""Not in the example: settings of MongoDB, of an embedded outbox or of messages, and those that others in the example
exclude."""


@dataclass(frozen=True)
class Setting:
    path: str
    field: FieldInfo
    meaning: str
    section: type[BaseModel] | None


def section_of(annotation: Any) -> type[BaseModel] | None:
    for option in (annotation, *typing.get_args(annotation)):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def settings(section: type[BaseModel] = PipelineSettings, before: str = "") -> Iterator[Setting]:
    """Every setting of the model, sections first with their own line, in the order of declaration."""
    texts = meanings(section)
    for name, field in section.model_fields.items():
        inner = section_of(field.annotation)
        yield Setting(before + name, field, texts.get(name, ""), inner)
        if inner:
            yield from settings(inner, f"{before}{name}.")


def type_name(annotation: Any) -> str:
    origin, options = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_name(options[0])
    if origin is typing.Literal:
        return ", ".join(f"`{option}`" for option in options)
    if origin in (typing.Union, types.UnionType):
        return type_name(next(option for option in options if option is not type(None)))
    if origin is tuple:
        return f"list of {type_name(options[0])}s"
    if origin is dict:
        return "map"
    names = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "path", Secret: "string (secret)"}
    return names[annotation]


def bounds(field: FieldInfo) -> str:
    """Range, length and pattern, as far as the field declares them."""
    low = high = longest = pattern = ""
    for rule in field.metadata:
        match rule:
            case annotated_types.Ge(ge=bound):
                low = f"{bound:,}"
            case annotated_types.Gt(gt=bound):
                low = f"more than {bound:,}"
            case annotated_types.Le(le=bound):
                high = f"{bound:,}"
            case annotated_types.MaxLen(max_length=bound):
                longest = f"at most {bound} characters"
        pattern = getattr(rule, "pattern", None) or pattern
    span = f"{low} to {high}" if low and high else low or high
    return "; ".join(part for part in (span, longest, f"`{pattern}`" if pattern else "") if part)


def default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default()
    if value in (None, "", (), {}):
        return ""
    return f"`{yaml_value(value)}`"


def yaml_value(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()


def example_lines(found: list[Setting]) -> Iterator[str]:
    """The complete example: defaults where they say something, otherwise the field's own example."""
    for setting in found:
        if setting.path.startswith(LEFT_OUT):
            continue
        indent, name = "  " * setting.path.count("."), setting.path.rpartition(".")[2]
        if setting.section:
            yield f"{indent}{name}:"
            continue
        value = default_text(setting.field).strip("`")
        if not value or value == "required":
            value = str((setting.field.examples or [""])[0])
            if value.startswith("{") and ":" not in value.partition("}")[0]:
                value = f"'{value}'"
        yield f"{indent}{name}: {value}"


def table(found: list[Setting]) -> Iterator[str]:
    yield "| setting | type | default | meaning |"
    yield "|---|---|---|---|"
    for setting in found:
        kind = type_name(setting.field.annotation)
        kind += f"; {limit}" if (limit := bounds(setting.field)) else ""
        cells = (f"`{setting.path}`", kind, default_text(setting.field), setting.meaning)
        yield f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def page() -> str:
    found = list(settings())
    lines = [HEAD, "```yaml", *example_lines(found), "```", "", "## Top level", ""]
    lines += table([setting for setting in found if "." not in setting.path and not setting.section])
    for section in (setting for setting in found if setting.section):
        inside = [s for s in found if s.path.rpartition(".")[0] == section.path and not s.section]
        lines += ["", f"## {section.path}", "", section.meaning]
        if inside:
            lines += ["", *table(inside)]
    return "\n".join(lines) + "\n"
