"""Random pairs of JSON Schemas: a compatible pair has no instance that only the writer accepts."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tailrace.schemas.compatibility.document import Document, Problem
from tailrace.schemas.compatibility.json_schema import json_problems
from tailrace.schemas.validators import ReferencedSchemas

DRAFTS = [
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
]


def problems(writer: Any, reader: Any, *, strict: bool = False) -> tuple[Problem, ...]:
    return json_problems(Document(reader), Document(writer), "the new version", "version 1", strict=strict)


SCALARS = st.sampled_from([None, True, False, -1, 0, 1, 2, 3, 0.5, 2.5, "", "a", "b", "ab", "aab"])
NAMES = ["a", "b", "ab", "c"]
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
TYPES = ["integer", "string", "number", "object", "array", "null", "boolean"]
SINCE = {"const": 1, "contains": 1, "propertyNames": 1, "if": 2, "then": 2, "else": 2, "dependentRequired": 3}
SINCE |= {"dependentSchemas": 3, "unevaluatedProperties": 3, "unevaluatedItems": 3, "minContains": 3, "maxContains": 3}
SINCE |= {"prefixItems": 4}


@st.composite
def schemas(draw: st.DrawFn, draft: int, depth: int = 2, guarded: bool = False) -> Any:
    if draft and draw(st.integers(0, 15)) == 0:
        return draw(st.booleans())
    if guarded and draw(st.integers(0, 6)) == 0:
        return {"$ref": "#/definitions/x"}
    inner = schemas(draft, depth - 1) if depth else st.sampled_from([{"type": kind} for kind in TYPES])
    below = schemas(draft, depth - 1, guarded=True) if depth else inner
    named = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)
    few = st.integers(0, 3)
    bound = st.sampled_from([0, 0.5, 1, 2])
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=4, unique_by=repr),
        "const": VALUES,
        "minimum": bound,
        "maximum": bound,
        "exclusiveMinimum": bound if draft else st.just(False),
        "exclusiveMaximum": bound if draft else st.just(False),
        "multipleOf": st.sampled_from([0.5, 1, 2]),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), few),
        "minContains": few,
        "maxContains": few,
        "pattern": st.sampled_from(["^a", "b$"]),
        "properties": st.dictionaries(st.sampled_from(NAMES), below, min_size=1, max_size=3),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b", "c$"]), below, min_size=1, max_size=2),
        "additionalProperties": st.just(False) | below,
        "unevaluatedProperties": st.just(False) | below,
        "propertyNames": inner,
        "required": named,
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), named, min_size=1, max_size=2),
        "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=2),
        "dependencies": st.dictionaries(st.sampled_from(NAMES), named | inner, min_size=1, max_size=2),
        "items": below if draft == 4 else below | st.lists(below, min_size=1, max_size=2),
        "prefixItems": st.lists(below, min_size=1, max_size=2),
        "additionalItems": st.just(False) | below,
        "unevaluatedItems": st.just(False) | below,
        "contains": inner,
        "uniqueItems": st.booleans(),
        **dict.fromkeys(("allOf", "anyOf", "oneOf"), st.lists(inner, min_size=1, max_size=3)),
        **dict.fromkeys(("not", "if", "then", "else"), inner),
    }
    known = [keyword for keyword in keywords if SINCE.get(keyword, 0) <= draft]
    chosen = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
    schema = {keyword: draw(keywords[keyword]) for keyword in chosen}
    for keyword in ("minimum", "maximum"):  # in draft 4, the exclusive keyword requires the other one
        exclusive = f"exclusive{keyword.capitalize()}"
        if draft == 0 and exclusive in schema:
            schema |= {exclusive: draw(st.booleans()), keyword: schema.get(keyword, 1)}
    return schema


def subschemas(node: Any) -> list[dict[str, Any]]:
    inside = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return ([node] if isinstance(node, dict) else []) + [each for part in inside for each in subschemas(part)]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    """A schema and the same with a few changes, in either order."""
    draft = draw(st.integers(0, 4))
    one = draw(schemas(draft).filter(lambda schema: isinstance(schema, dict)))
    one |= {"$schema": DRAFTS[draft], "definitions": {"x": draw(schemas(draft, 1, guarded=False))}}
    other = copy.deepcopy(one)
    for _ in range(draw(st.integers(1, 2))):
        node = draw(st.sampled_from(subschemas(other)))
        removable = sorted(set(node) - {"$schema", "definitions", "x"})
        if removable and draw(st.booleans()):
            del node[draw(st.sampled_from(removable))]
        else:
            added = draw(schemas(draft, 1))
            node.update(added if isinstance(added, dict) else {})
    return (one, other) if draw(st.booleans()) else (other, one)


def validator(schema: Any) -> jsonschema_rs.Validator:
    try:
        return jsonschema_rs.validator_for(schema, **ReferencedSchemas().options())
    except ValueError:  # a change made the schema invalid
        assume(False)
        raise


@pytest.mark.slow
def test_many_random_pairs_are_compatible() -> None:
    """Without compatible pairs and valid instances, the next test would test nothing."""
    compatible = 0

    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(pairs(), st.lists(VALUES, min_size=20, max_size=20))
    def count(pair: tuple[Any, Any], values: list[Any]) -> None:
        nonlocal compatible
        valid = [value for value in values if validator(pair[0]).is_valid(value)]
        validator(pair[1])
        compatible += bool(valid) and not problems(*pair, strict=True)

    count()
    assert compatible > 20


@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(pairs(), st.lists(VALUES, min_size=40, max_size=40))
def test_a_compatible_reader_rejects_nothing(pair: tuple[Any, Any], values: list[Any]) -> None:
    writer, reader = map(validator, pair)
    if problems(*pair, strict=True):
        return
    for value in values:
        assert reader.is_valid(value) or not writer.is_valid(value)


OBJECTS = st.dictionaries(st.sampled_from(NAMES), SCALARS, max_size=4)
PROPERTIES = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([{"type": kind} for kind in TYPES] + [{}]))


@st.composite
def open_objects(draw: st.DrawFn, depth: int = 1) -> Any:
    """An open object whose parts all apply together, so that the names it declares are easy to determine."""
    names = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)
    schema: dict[str, Any] = {"properties": draw(PROPERTIES), "required": draw(names)}
    if draw(st.booleans()):
        schema["patternProperties"] = {draw(st.sampled_from(["^a", "c$"])): {"type": draw(st.sampled_from(TYPES))}}
    if draw(st.booleans()):
        schema["dependentRequired"] = {draw(st.sampled_from(NAMES)): draw(names)}
    if depth and draw(st.booleans()):
        schema["allOf"] = [draw(open_objects(depth - 1))]
    if depth and draw(st.booleans()):
        schema |= {"$ref": "#/$defs/x", "$defs": {"x": draw(open_objects(depth - 1))}}
    if draw(st.integers(0, 5)) == 0:
        schema["additionalProperties"] = {"type": draw(st.sampled_from(TYPES))}
    return schema


def declares(schema: dict[str, Any], name: str) -> bool:
    """Whether a writer says anything about a property of this name."""
    parts = [*schema.get("allOf", ()), *schema.get("$defs", {}).values()]
    dependent = schema.get("dependentRequired", {})
    return (
        name in schema["properties"]
        or name in schema["required"]
        or name in dependent
        or any(name in needed for needed in dependent.values())
        or any(validator({"pattern": pattern}).is_valid(name) for pattern in schema.get("patternProperties", ()))
        or "additionalProperties" in schema
        or any(declares(part, name) for part in parts)
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(open_objects(), open_objects(), st.lists(OBJECTS, min_size=30, max_size=30))
def test_in_lenient_mode_only_undeclared_names_may_be_rejected(old: Any, new: Any, values: list[Any]) -> None:
    writer, reader = validator(old), validator(new)
    if problems(old, new):
        return
    for value in values:
        if writer.is_valid(value) and all(declares(old, name) for name in value):
            assert reader.is_valid(value)
