"""Explanations name the field, the expected and the actual value, briefly and without the payload."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.schema_versions import Version
from tailrace.schemas.json_schema import CompiledJsonSchema
from tailrace.schemas.messages import LISTABLE_BYTES, describe

SECRET = "4111-1111-1111-1111"


def explain(schema: Any, value: Any, *, size: int | None = None) -> str:
    compiled = CompiledJsonSchema.compile("T", Version(1), schema, "T/1.json")
    assert not compiled.validator.is_valid(value)
    return compiled.explain(value, len(orjson.dumps(value)) if size is None else size)


@pytest.mark.parametrize(
    ("schema", "value", "says"),
    [
        ({"type": "string"}, 5, "$: expected string, got 5"),
        ({"type": ["string", "null"]}, [1, 2], "$: expected null or string, got an array of 2 items"),
        ({"enum": ["a", "b"]}, "c", '$: expected one of ["a","b"], got "c"'),
        ({"const": {"a": 1}}, True, '$: expected {"a":1}, got true'),
        ({"format": "uuid"}, "x", '$: expected the format uuid, got "x"'),
        ({"pattern": "^a$"}, "b", '$: expected text that matches ^a$, got "b"'),
        ({"minimum": 3}, 2, "$: expected at least 3, got 2"),
        ({"exclusiveMaximum": 3}, 3, "$: expected less than 3, got 3"),
        ({"multipleOf": 2}, 3, "$: expected a multiple of 2, got 3"),
        ({"maxLength": 1}, "ab", '$: expected at most 1 characters, got "ab"'),
        ({"minItems": 1}, [], "$: expected at least 1 items, got an array of 0 items"),
        ({"uniqueItems": True}, [1, 1], "$: expected items that all differ, got an array of 2 items"),
        ({"required": ["a"]}, {"b": 1}, "$: expected the field 'a', got an object of 1 field without"),
        (
            {"properties": {}, "additionalProperties": False},
            {"x": 1},
            "$: expected no further fields, got 'x'",
        ),
        (
            {"anyOf": [{"type": "null"}, {"type": "array"}]},
            1,
            "$: expected one of 2 alternatives to match, got 1",
        ),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, "the name expected at most 1 characters"),
        ({"not": {}}, 1, "$: expected what `not` demands, got 1"),
    ],
)
def test_each_kind_of_error_has_its_message(schema: Any, value: Any, says: str) -> None:
    assert says in explain(schema, value)


def test_the_path_leads_to_the_field() -> None:
    schema = {
        "properties": {"items": {"items": {"properties": {"price": {"type": "number"}, "a b": {"type": "null"}}}}}
    }
    text = explain(schema, {"items": [{}, {}, {"price": "9", "a b": 1}]})
    assert '$.items[2].price: expected number, got "9"' in text
    assert "$.items[2]['a b']: expected null, got 1" in text


def test_at_most_five_errors_are_listed() -> None:
    text = explain({"items": {"type": "string"}}, list(range(9)))
    assert text.count("expected string") == 5
    assert text.endswith("; and more")
    assert not explain({"items": {"type": "string"}}, list(range(5))).endswith("and more")


def test_containers_are_not_shown_and_scalars_are_shortened() -> None:
    schema = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    text = explain(schema, {"a": {"card": SECRET}, "b": "x" * 500, "c": SECRET})
    assert SECRET not in text
    assert "card" not in text
    assert "x" * 80 in text
    assert "x" * 81 not in text
    assert "(500 characters)" in text


@given(
    st.recursive(
        st.text() | st.integers(-(2**63), 2**64 - 1),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_value_is_described_briefly(value: Any) -> None:
    assert len(describe(value)) <= 80 * 6 + 40


FILL = "f" * LISTABLE_BYTES
LARGE = [
    ({"properties": {"a": {"type": "string"}}}, {"z": FILL, "a": 1}, "$.a: expected string, got 1"),
    (
        {
            "properties": {"o": {"$ref": "#/$defs/o"}},
            "$defs": {"o": {"properties": {"a/b": {"type": "null"}}}},
        },
        {"o": {"z": FILL, "a/b": 1}},
        "$.o['a/b']: expected null, got 1",
    ),
    ({"allOf": [{}, {"items": {"minimum": 0}}]}, [FILL, 1, -1], "$[2]: expected at least 0, got -1"),
    (
        {"required": ["a", "b"]},
        {"z": FILL, "b": 1},
        "$: expected the field 'a', got an object of 2 fields without it",
    ),
    (
        {"properties": {"z": {}}, "additionalProperties": False},
        {"z": FILL, "q": 1},
        "no further fields, got 'q'",
    ),
    (
        {"anyOf": [{"type": "null"}]},
        [FILL],
        "an array of 1 item as a whole violates one of 'anyOf' at T/1.json#",
    ),
    ({"type": "integer"}, FILL, "$: expected integer, got"),
    ({"items": {"maxLength": 1}}, ["", FILL], "$[1]: expected at most 1 characters, got"),
    (False, [FILL], "as a whole violates one of its rules"),
]


@pytest.mark.parametrize(("schema", "value", "says"), LARGE)
def test_the_error_in_a_large_value_is_located(schema: Any, value: Any, says: str) -> None:
    text = explain(schema, value)
    assert says in text
    assert FILL[:100] not in text


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "schema",
    [
        {"propertyNames": {"maxLength": 1}},
        {"anyOf": [{"propertyNames": {"maxLength": 1}}, {"type": "string"}]},
        {"required": [f"f{number}" for number in range(200)]},
        {"additionalProperties": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
        {
            "allOf": [{"$ref": "#/$defs/a"}],
            "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"maxProperties": 1}},
        },
    ],
)
def test_thousands_of_errors_are_explained_in_bounded_time(schema: Any) -> None:
    # Listing the errors of the first two takes about ten seconds each at this size.
    value = {f"a{number}": "x" * 10 for number in range(4000)}
    started = time.process_time()
    assert len(explain(schema, value)) < 4096
    assert time.process_time() - started < 3


def test_circular_references_end() -> None:
    schema = {
        "allOf": [{"$ref": "#/$defs/a"}],
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a", "type": "null"}},
    }
    assert "as a whole violates" in explain(schema, [FILL])


def test_a_value_with_very_many_members_is_not_listed() -> None:
    value = {str(number): 1 for number in range(500)}
    assert len(orjson.dumps(value)) <= LISTABLE_BYTES
    assert "as a whole violates one of 'propertyNames'" in explain({"propertyNames": {"maxLength": 0}}, value)
