"""Explains why a value is not valid: which field, what was expected, what was found.

Explanations are written to headers of dead letters, so they never repeat the payload: a scalar is cut to 80 characters,
an object or array is described by its kind and size. Their cost is bounded: listing all errors takes time quadratic in
the size of the value (measured: 10 s for an object of 4,000 fields). So a large value is first narrowed down to its
smallest invalid part, with plain validity checks, which are fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from itertools import islice
from typing import Any

import jsonschema_rs
import orjson
from jsonschema_rs import ValidationErrorKind as Kind

from tailrace.schemas.strict_json import Json
from tailrace.schemas.validators import ReferencedSchemas, pointer

MAX_ERRORS = 5
SHOWN = 80
"""Characters of a value or name that are shown."""
LISTABLE_BYTES = 4096
"""All errors are listed for values up to this size"""
LISTABLE_MEMBERS = 100
"""with fewer commas than this. The cost grows with the square: 0.01 s for the most expensive single keyword found
(propertyNames on 100 fields), 0.3 s for a schema that nests 25 of them as alternatives."""
MAX_STEPS = 64
"""Steps to narrow down a large value. Real schemas nest less; circular references end here."""

Path = tuple[str | int, ...]


class Explainer:
    """Explains failures of one schema. Its subschemas are compiled when the first large value needs them."""

    def __init__(
        self, document: Json, file: str, validator: jsonschema_rs.Validator, surroundings: ReferencedSchemas
    ) -> None:
        self._document = document
        self._file = file
        self._validator = validator
        self._surroundings = surroundings
        self._parts: jsonschema_rs.ValidatorMap | None = None

    def explain(self, value: Json, size: int) -> str:
        """Returns up to MAX_ERRORS sentences that explain why `value`, of `size` bytes as JSON, is not valid."""
        # Check the size first, so that a large value is not serialised only to find that it is large.
        if not isinstance(value, dict | list) or (size <= LISTABLE_BYTES and _listable(value)):
            return _listed(self._validator, value, ())
        if self._parts is None:
            self._parts = jsonschema_rs.validator_map_for(self._document, **self._surroundings.options())
        return self._narrowed(value)

    def _narrowed(self, value: Json) -> str:
        """Follows properties, items, allOf and local references down to the invalid part."""
        schema: Path = ()
        path: Path = ()
        for _ in range(MAX_STEPS):
            step = self._step(schema, value)
            if step is None:
                break
            schema, into = step
            path += into
            for name in into:
                value = value[name]
            if into and _listable(value):
                validator = self._part(schema)
                if validator is not None:
                    return _listed(validator, value, path)
        return f"{path_text(path)}: {self._whole(schema, value)}"

    def _step(self, schema: Path, value: Json) -> tuple[Path, Path] | None:
        """Returns a smaller (schema path, value path) that fails as well, or None if the error is here."""
        node = self._node(schema)
        if not isinstance(node, dict):
            return None
        ref = node.get("$ref")
        if isinstance(ref, str) and ref.startswith("#/"):
            target = tuple(part.replace("~1", "/").replace("~0", "~") for part in ref[2:].split("/"))
            if self._fails(target, value):
                return target, ()
        if isinstance(value, dict) and isinstance(node.get("properties"), dict):
            for name in node["properties"]:
                if name in value and self._fails((*schema, "properties", name), value[name]):
                    return (*schema, "properties", name), (name,)
        if isinstance(value, list) and isinstance(node.get("items"), dict):
            validator = self._part((*schema, "items"))
            for index, item in enumerate(value if validator else ()):
                if validator and not validator.is_valid(item):
                    return (*schema, "items"), (index,)
        if isinstance(node.get("allOf"), list):
            for index in range(len(node["allOf"])):
                if self._fails((*schema, "allOf", index), value):
                    return (*schema, "allOf", index), ()
        return None

    def _whole(self, schema: Path, value: Json) -> str:
        """Describes what is wrong with a large value itself, as far as that is cheap to find."""
        node = self._node(schema)
        if isinstance(node, dict) and isinstance(value, dict):
            required = node.get("required")
            missing = [name for name in required if name not in value] if isinstance(required, list) else []
            if missing:
                return (
                    f"expected the field{_s(missing)} {_names(missing)}, got {describe(value)} without {_it(missing)}"
                )
            if node.get("additionalProperties") is False and "patternProperties" not in node:
                unexpected = [name for name in value if name not in node.get("properties", {})]
                if unexpected:
                    return f"expected no further fields, got {_names(unexpected)}"
        keywords = [key for key in node if not key.startswith("$")] if isinstance(node, dict) else []
        place = f"{self._file}{pointer(schema)}"
        return f"{describe(value)} as a whole violates one of {_names(keywords) or 'its rules'} at {place}"

    def _node(self, schema: Path) -> Json:
        node = self._document
        for part in schema:
            try:
                node = node[int(part)] if isinstance(node, list) else node[part]
            except (KeyError, IndexError, ValueError, TypeError):
                return None
        return node

    def _part(self, schema: Path) -> jsonschema_rs.Validator | None:
        return self._parts.get(pointer(schema)) if self._parts else None

    def _fails(self, schema: Path, value: Json) -> bool:
        validator = self._part(schema)
        return validator is not None and not validator.is_valid(value)


def _listable(value: Json) -> bool:
    """Whether all errors of the value may be listed. Errors of a scalar cannot multiply, so its size does not
    matter."""
    if not isinstance(value, dict | list):
        return True
    text = orjson.dumps(value)
    # Commas inside strings are counted, too: at worst, a value is narrowed down unnecessarily.
    return len(text) <= LISTABLE_BYTES and text.count(b",") < LISTABLE_MEMBERS


def _listed(validator: jsonschema_rs.Validator, value: Json, at: Path) -> str:
    """Lists the first errors of a small value."""
    try:
        errors = list(islice(validator.iter_errors(value), MAX_ERRORS + 1))
    except ValueError:
        return f"{path_text(at)}: {describe(value)} is not valid"
    lines = [f"{path_text((*at, *error.instance_path))}: {_sentence(error)}" for error in errors[:MAX_ERRORS]]
    if len(errors) > MAX_ERRORS:
        lines.append("and more")
    return "; ".join(lines)


_EXPECTED: dict[type[Kind], Callable[[Any], str]] = {
    Kind.Type: lambda kind: " or ".join(kind.types),
    Kind.Enum: lambda kind: f"one of {_schema_value(kind.options)}",
    Kind.Constant: lambda kind: _schema_value(kind.expected_value),
    Kind.Format: lambda kind: f"the format {kind.format}",
    Kind.Pattern: lambda kind: f"text that matches {cut(kind.pattern)}",
    Kind.Minimum: lambda kind: f"at least {kind.limit}",
    Kind.Maximum: lambda kind: f"at most {kind.limit}",
    Kind.ExclusiveMinimum: lambda kind: f"more than {kind.limit}",
    Kind.ExclusiveMaximum: lambda kind: f"less than {kind.limit}",
    Kind.MultipleOf: lambda kind: f"a multiple of {kind.multiple_of}",
    Kind.MinLength: lambda kind: f"at least {kind.limit} characters",
    Kind.MaxLength: lambda kind: f"at most {kind.limit} characters",
    Kind.MinItems: lambda kind: f"at least {kind.limit} items",
    Kind.MaxItems: lambda kind: f"at most {kind.limit} items",
    Kind.AdditionalItems: lambda kind: f"at most {kind.limit} items",
    Kind.MinProperties: lambda kind: f"at least {kind.limit} fields",
    Kind.MaxProperties: lambda kind: f"at most {kind.limit} fields",
    Kind.UniqueItems: lambda _: "items that all differ",
    Kind.Contains: lambda _: "an item that matches `contains`",
    Kind.AnyOf: lambda kind: f"one of {len(kind.context)} alternatives to match",
    Kind.OneOfNotValid: lambda kind: f"one of {len(kind.context)} alternatives to match",
    Kind.OneOfMultipleValid: lambda _: "exactly one alternative to match, but several do",
    Kind.FalseSchema: lambda _: "nothing at all",
}


def _sentence(error: jsonschema_rs.ValidationError) -> str:
    """Words an error by its kind. The library's own message is not used, because it quotes the whole value."""
    kind = error.kind
    if isinstance(kind, Kind.Required):
        return f"expected the field {cut(kind.property)!r}, got {describe(error.instance)} without it"
    if isinstance(kind, Kind.AdditionalProperties | Kind.UnevaluatedProperties):
        return f"expected no further fields, got {_names(kind.unexpected)}"
    if isinstance(kind, Kind.PropertyNames):
        return f"expected other field names; the name {_sentence(kind.error)}"
    expected = _EXPECTED.get(type(kind))
    words = expected(kind) if expected else f"what `{cut(kind.name)}` demands"
    return f"expected {words}, got {describe(error.instance)}"


def describe(value: Json) -> str:
    """Describes a value for messages: scalars cut to SHOWN characters, containers by kind and size."""
    if isinstance(value, dict):
        return f"an object of {len(value)} field{_s(value)}"
    if isinstance(value, list):
        return f"an array of {len(value)} item{_s(value)}"
    if isinstance(value, str):
        shown = orjson.dumps(value[:SHOWN]).decode()
        return shown if len(value) <= SHOWN else f"{shown}… ({len(value)} characters)"
    return cut(orjson.dumps(value, default=str).decode())


def cut(text: str) -> str:
    """Cuts `text` to SHOWN characters."""
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _schema_value(value: Json) -> str:
    """Shows a value from the schema, cut as well."""
    shown = orjson.dumps(value, default=str).decode()
    return shown if len(shown) <= 3 * SHOWN else shown[: 3 * SHOWN] + "…"


def _names(names: list[str]) -> str:
    shown = ", ".join(repr(cut(name)) for name in names[:MAX_ERRORS])
    return f"{shown} and {len(names) - MAX_ERRORS} more" if len(names) > MAX_ERRORS else shown


def _it(counted: Sized) -> str:
    return "it" if len(counted) == 1 else "them"


def _s(counted: Sized) -> str:
    return "" if len(counted) == 1 else "s"


def path_text(path: Path) -> str:
    """Formats a path as `$.items[2].price`: names that are no identifiers in brackets, long paths without their
    middle."""
    parts = [_path_part(part) for part in path]
    if len(parts) > 16:
        parts[8:-8] = [".…"]
    return "$" + "".join(parts)


def _path_part(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if part.isidentifier() and len(part) <= SHOWN else f"[{cut(part)!r}]"
