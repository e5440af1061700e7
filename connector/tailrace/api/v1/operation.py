"""An operation of the JSON API: a command of the command line as plain data, with its parameters.

The command line builds these values from its commands (`cli.operations`). Endpoints, the OpenAPI document and
`--worker` are generated from them, so they cannot differ from the commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tailrace.errors import ConfigError

Kind = Literal["string", "integer", "number", "boolean", "content"]
"""`content`: the content of a file, such as a plan. In the API it is a JSON value, never a path."""
PIPELINE = "<pipeline>"
"""Stands for the settings file of the pipeline in the order of a command's arguments."""
MAX_TEXT = 2000
MAX_VALUES = 500

Value = str | int | float | bool | list[str]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `option` is its option on the command line; empty for an argument."""

    name: str
    kind: Kind
    help: str
    option: str = ""
    default: Value | None = None
    required: bool = False
    repeatable: bool = False
    minimum: float | None = None
    maximum: float | None = None

    def checked(self, given: object) -> Value:
        """Returns a value from JSON; raises ConfigError if it has another type or is out of range."""
        if self.kind == "content":
            raise self._invalid("is the content of a file, never a path on the worker")
        if self.repeatable:
            values = given if isinstance(given, list) else [given]
            if len(values) > MAX_VALUES:
                raise self._invalid(f"has more than {MAX_VALUES:,} values")
            return [self._text(each) for each in values]
        if self.kind == "boolean":
            if not isinstance(given, bool):
                raise self._invalid("must be true or false")
            return given
        if self.kind in ("integer", "number"):
            return self._number(given)
        return self._text(given)

    def parsed(self, texts: Sequence[str]) -> Value:
        """Returns the value of a query parameter, which may be repeated."""
        if self.repeatable:
            return self.checked(list(texts))
        if len(texts) != 1:
            raise self._invalid("is given more than once")
        text = texts[0]
        if self.kind == "boolean":
            if text not in ("true", "false"):
                raise self._invalid("must be true or false")
            return text == "true"
        if self.kind in ("integer", "number"):
            try:
                return self._number(int(text) if self.kind == "integer" else float(text))
            except ValueError:
                raise self._invalid(f"must be a{'n integer' if self.kind == 'integer' else ' number'}") from None
        return self._text(text)

    def words(self, value: Value) -> list[str]:
        """Returns the option with its value, as on a command line. Not for arguments."""
        if isinstance(value, bool):
            return [self.option] if value else []
        if isinstance(value, list):
            return [f"{self.option}={each}" for each in value]
        return [f"{self.option}={value}"]

    def _text(self, given: object) -> str:
        if not isinstance(given, str):
            raise self._invalid("must be a string" if not self.repeatable else "must be a list of strings")
        if len(given) > MAX_TEXT:
            raise self._invalid(f"has more than {MAX_TEXT:,} characters")
        if "\0" in given or any("\ud800" <= character <= "\udfff" for character in given):
            raise self._invalid("contains a character that is not allowed: NUL, or half of a surrogate pair")
        return given

    def _number(self, given: object) -> int | float:
        allowed = (int,) if self.kind == "integer" else (int, float)
        if isinstance(given, bool) or not isinstance(given, allowed):
            raise self._invalid(f"must be a{'n integer' if self.kind == 'integer' else ' number'}")
        low, high = self.minimum, self.maximum
        # Written so that NaN, which is neither below nor above, is refused as well.
        if not ((low is None or given >= low) and (high is None or given <= high)) or given != given:  # noqa: PLR0124
            bounds = [f"at least {low:g}"] if low is not None else []
            bounds += [f"at most {high:g}"] if high is not None else []
            raise self._invalid(f"must be {' and '.join(bounds) or 'a number'}")
        if abs(given) >= 2**63:
            raise self._invalid("is too large")
        return given

    def _invalid(self, what: str) -> ConfigError:
        return ConfigError(f"the parameter {self.name} {what}", remedy="See /api/v1/openapi.json.")


@dataclass(frozen=True, slots=True)
class Operation:
    """A command that the API offers.

    `arguments` are the command's arguments in order: names of parameters, and PIPELINE for the settings file.
    `settings_option` is set if the command takes that file as an option instead. `long`: it may take minutes, and runs
    as a job. `lines`: it prints one JSON object per line, which the API returns as a list. `writes` is the option for
    the file that it writes. `shows_events`: the result contains payloads, or parts of them, so it needs the role
    admin.
    """

    name: str
    method: Literal["GET", "POST"]
    summary: str
    description: str
    parameters: tuple[Parameter, ...]
    arguments: tuple[str, ...] = (PIPELINE,)
    settings_option: str = ""
    long: bool = False
    lines: bool = False
    confirms: bool = False
    writes: str = ""
    shows_events: bool = False

    @property
    def path(self) -> str:
        """Its path below the pipeline's."""
        return self.name.replace(" ", "/")

    def parameter(self, name: str) -> Parameter:
        """Returns a parameter; raises ConfigError if there is none of this name."""
        for each in self.parameters:
            if each.name == name:
                return each
        known = ", ".join(each.name for each in self.parameters) or "none"
        raise ConfigError(f"`{self.name}` has no parameter {name!r}", remedy=f"There are: {known}.")

    def require_all(self, given: Mapping[str, object]) -> None:
        """Raises ConfigError if a required parameter is missing."""
        for each in self.parameters:
            if each.required and each.name not in given:
                raise ConfigError(f"the parameter {each.name} is missing", why=each.help, remedy=f"Give {each.name}.")

    def words(
        self,
        pipelines: Sequence[str],
        values: Mapping[str, Value],
        files: Mapping[str, str],
        *,
        as_json: bool,
        yes: bool,
    ) -> list[str]:
        """Returns the command line. `pipelines` are settings files: one, unless the command takes several.

        `files` are the paths of parameters of kind `content`.
        """
        found = self.name.split()
        found += [f"{self.settings_option}={pipelines[0]}"] if self.settings_option else []
        for each in self.parameters:
            if each.option and each.name in files:
                found.append(f"{each.option}={files[each.name]}")
            elif each.option and each.name in values:
                found += each.words(values[each.name])
        found += ["--yes"] if yes and self.confirms else []
        found += ["--json"] if as_json else []
        found.append("--")
        for name in self.arguments:
            if name == PIPELINE:
                found += pipelines
            elif name in files:
                found.append(files[name])
            else:
                value = values.get(name, [])
                found += value if isinstance(value, list) else [str(value)]
        return found


def by_name(operations: Sequence[Operation], name: object) -> Operation:
    """Returns an operation; raises ConfigError if there is none of this name."""
    for each in operations:
        if each.name == name:
            return each
    raise ConfigError(
        f"a worker does not run the command {name!r}",
        remedy=f"It runs: {', '.join(each.name for each in operations)}.",
    )


def schema_of(parameter: Parameter) -> dict[str, Any]:
    """Returns the JSON Schema of a parameter."""
    schema: dict[str, Any] = {"description": parameter.help}
    if parameter.kind == "content":
        return schema
    text = {"type": "string", "maxLength": MAX_TEXT}
    if parameter.repeatable:
        return {**schema, "type": "array", "items": text, "maxItems": MAX_VALUES}
    schema |= text if parameter.kind == "string" else {"type": parameter.kind}
    if parameter.minimum is not None:
        schema["minimum"] = parameter.minimum
    if parameter.kind in ("integer", "number"):
        schema["maximum"] = parameter.maximum if parameter.maximum is not None else 2**63 - 1
    if parameter.default not in (None, "", []):
        schema["default"] = parameter.default
    return schema
