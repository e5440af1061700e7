"""What a glance takes, how it learns the order of keys, and when it gives up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from benchmarks.backlog import SCHEMA
from benchmarks.real_events import json_schema

from tailrace.errors import Rejected
from tailrace.event import OutboxEvent
from tailrace.schemas.checking import Checker
from tailrace.schemas.contracts import SchemaSet
from tailrace.schemas.glance import numbers
from tailrace.schemas.glance.json_schema import parts_of
from tailrace.schemas.glance.looking import MOST_EXPRESSIONS, PATIENCE, PAYS, LearningGlance, blind
from tailrace.schemas.glance.spelling import Scalar, Unknown
from tailrace.schemas.json_contract import JsonContract

ORDER = {
    "order": "o-1", "customer": "ann", "amount": 12.5, "currency": "EUR", "status": "placed", "revision": 1,
    "note": "zügig", "express": False,
}  # fmt: skip
INVOICE = {
    "invoice": "INV-00000012", "order": "order-12", "revision": 12, "issued": "2026-11-16T10:11:12Z",
    "due": "2026-12-16", "currency": "EUR", "status": "open", "net": 1200, "tax": 228, "gross": 1428, "rate": 0.19,
    "paid": True, "channel": "web", "language": "de-DE", "email": "c.us+tomer@example.org", "note": "x" * 40,
    "reference": "0b0b2d8e-9c1d-4c5a-9b3e-0a1b2c3d4e5f",
    "customer": {"id": "C-33", "name": "Customer 12", "tags": ["new", "web"]},
    "address": {"street": "Hauptstr. 1", "zip": "10115", "city": "Berlin", "country": "DE"},
    "lines": [{"sku": "SKU-1001", "quantity": 1, "price": 1999}, {"sku": "SKU-1002", "quantity": 2, "price": 599}],
}  # fmt: skip


def text(value: Any, *, compact: bool = False) -> bytes:
    separators = (",", ":") if compact else (", ", ": ")
    return json.dumps(value, ensure_ascii=False, separators=separators).encode()


def learned(document: Any, *values: Any, compact: bool = False) -> LearningGlance:
    glance = LearningGlance(parts_of(document))
    for value in values:
        assert JsonContract.compile("s", 1, document, "f").is_valid(value)
        glance.learn(text(value, compact=compact), value, rewritten=False)
    return glance


def known(glance: LearningGlance, value: Any, *, compact: bool = False) -> bool:
    one = text(value, compact=compact)
    found = glance.look(one, False)
    assert found in (one, None)
    return found is not None


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize(("document", "value"), [(SCHEMA, ORDER), (json_schema("Invoice"), INVOICE)])
def test_the_events_of_a_service_are_known_after_the_first(document: Any, value: Any, compact: bool) -> None:
    glance = learned(document, value, compact=compact)
    assert known(glance, value, compact=compact)
    assert known(glance, {**value, "currency": "USD", "note": "ü" * 50}, compact=compact)
    for wrong in ({"currency": "usd"}, {"order": ""}, {"revision": 0}, {"note": "x" * 501}, {"status": "lost"}):
        assert not known(glance, {**value, **wrong}, compact=compact)
    assert not known(glance, {**value, "more": 1}, compact=compact)
    assert not known(glance, value, compact=not compact)


def test_keys_that_may_be_absent_are_learned_as_they_come() -> None:
    document = {"properties": {name: {"type": "integer"} for name in "abcd"}, "required": ["b"]}
    glance = learned(document, {"b": 1}, {"a": 1, "b": 1}, {"b": 1, "d": 1}, {"b": 2, "c": 1, "d": 1})
    for value in ({"a": 1, "b": 1, "c": 1, "d": 1}, {"b": 1, "c": 1}, {"a": 5, "b": 1, "d": 1}):
        assert known(glance, value)
    assert not known(glance, {"b": 1, "a": 1})  # another order is not learned
    assert not known(glance, {"a": 1})


def test_keys_beyond_the_schema_are_learned_if_they_are_allowed() -> None:
    document: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert known(learned(document, {"a": 1, "more": "x"}), {"a": 2, "more": None})
    assert not known(learned(document, {"a": 1, "more": {"deep": 1}}), {"a": 1, "more": {"deep": 1}})
    glance = learned({**document, "additionalProperties": {"type": "boolean"}}, {"a": 1, "more": True})
    assert known(glance, {"a": 2, "more": False})
    assert not known(glance, {"a": 2, "more": 1})


@pytest.mark.parametrize(
    "keyword",
    [
        {"not": {}}, {"if": {}}, {"allOf": [{}]}, {"patternProperties": {}}, {"uniqueItems": True}, {"multipleOf": 2},
        {"minProperties": 1}, {"propertyNames": {}}, {"dependentRequired": {}}, {"contains": {}}, {"prefixItems": []},
        {"unevaluatedProperties": False}, {"$dynamicRef": "#"}, {"minimum": 0.5}, {"pattern": "a"}, {"pattern": "^a$b"},
        {"pattern": "^(?=a)$"}, {"pattern": "^a+?$"}, {"pattern": r"^\s$"}, {"pattern": "^[^a]$"}, {"pattern": "^a|b$"},
        {"format": "regex"}, {"$ref": "#/$defs/itself"}, {"$ref": "other.json"}, {"additionalProperties": {"not": {}}},
        {"oneOf": [{"type": "string"}, {"maxLength": 3}]}, {"anyOf": [{"type": "integer"}, {"type": "number"}]},
        {"properties": {"x": False}}, {"unknown": 1},
    ],
)  # fmt: skip
def test_what_is_not_understood_has_no_glance(keyword: dict[str, Any]) -> None:
    with pytest.raises(Unknown):
        parts_of({"properties": {"a": keyword}, "$defs": {"itself": {"properties": {"b": {"$ref": "#/$defs/itself"}}}}})


@pytest.mark.parametrize(
    "value", [{"a": 'quo"te'}, {"a": "tab\t"}, {"a": "nul\0"}, {"a": "back\\slash"}, {"a": "\x1f"}, {"a": "\ud800"}]
)
def test_texts_with_escapes_and_control_characters_are_left_to_others(value: Any) -> None:
    glance = learned({"properties": {"a": {"type": "string"}}}, {"a": "x"})
    raw = json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")
    assert glance.look(raw, False) is None
    assert (
        glance.look(b'{"a": "' + value["a"].encode(errors="surrogatepass").replace(b'"', b"") + b'\0"}', False) is None
    )


@pytest.mark.parametrize(
    ("low", "high"), [(0, 150), (-5, 5), (7, 7), (98, 1203), (-1200, -99), (0, 10**18 - 1), (1, None)]
)
def test_whole_numbers_within_bounds_are_just_those(low: int, high: int | None) -> None:
    document = {"type": "integer", "minimum": low, **({} if high is None else {"maximum": high})}
    glance = learned(document, max(low, 0) if high is None or high > 0 else low)
    for number in (*range(-1300, 1300), 10**18 - 1, 10**9):
        assert known(glance, number) == (low <= number <= (high or numbers.MOST))


def test_what_an_escape_hides_is_made_up_for_by_the_next() -> None:
    glance = learned({"properties": {"a": {}, "b": {}}}, {"a": "new\nline"})
    assert glance.look is blind
    glance.learn(text({"a": "x"}), {"a": "x"}, rewritten=False)
    assert known(glance, {"a": "y"})
    glance.learn(text({"a": "x", "b": "\t"}), {"a": "x", "b": "\t"}, rewritten=False)
    assert not known(glance, {"a": "y", "b": 1})
    glance.learn(text({"a": "x", "b": 1}), {"a": "x", "b": 1}, rewritten=False)
    assert known(glance, {"a": "y", "b": 2})


def test_an_expression_that_cannot_be_compiled_is_done_without() -> None:
    glance = LearningGlance(Scalar("(", frozenset({str})))
    glance.learn(b'"x"', "x", rewritten=False)
    assert glance.look is blind
    glance.learn(b'"x"', "x", rewritten=False)


def test_a_service_without_an_order_is_not_looked_at_for_long() -> None:
    document = {"properties": {"a": {}, "b": {}, "c": {}}}
    glance = learned(document, {"a": 1, "b": 1, "c": 1})
    for _ in range(PATIENCE):
        assert glance.look is not blind
        glance.learn(text({"c": 1, "b": 1}), {"c": 1, "b": 1}, rewritten=False)
    assert glance.look is blind
    glance.learn(text({"a": 1}), {"a": 1}, rewritten=False)
    assert glance.look is blind


def test_a_stranger_now_and_then_is_no_reason_to_give_up() -> None:
    glance = learned({"properties": {"a": {}, "b": {}}}, {"a": 1, "b": 1})
    for _ in range(10 * PATIENCE):
        for _ in range(PAYS):
            assert known(glance, {"a": 1, "b": 2})
        glance.learn(text({"b": 1, "a": 1}), {"b": 1, "a": 1}, rewritten=False)
    assert known(glance, {"a": 1})


def test_keys_that_are_data_end_it_soon() -> None:
    glance = LearningGlance(parts_of({"type": "object", "additionalProperties": {"type": "integer"}}))
    for number in range(MOST_EXPRESSIONS + PATIENCE + 1):
        value = {f"user-{number}": number}
        glance.learn(text(value), value, rewritten=False)
    assert glance.look is blind


def test_the_checker_looks_first_and_judges_as_before() -> None:
    document = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}
    contract = JsonContract.compile("T", 1, document, "f")
    checker = Checker(SchemaSet.of([contract]), max_bytes=1000)

    def check(payload: bytes) -> Any:
        return checker.check(OutboxEvent("1", "T", "o", None, payload, None, "0/1:0", 0, []), "t")

    assert check(b'{"a": 1}') == ({"a": 1}, contract)
    assert check(b'{"a": 2}') == (b'{"a": 2}', contract)  # known: nothing was parsed
    assert check(b'{"a":2}') == ({"a": 2}, contract)
    for bad in (b'{"a": 10}', b'{"a": 1, "a": 2}', b'{"a": 1', b'{, "a": 1}', b'{"a": 01}'):
        with pytest.raises(Rejected):
            check(bad)
