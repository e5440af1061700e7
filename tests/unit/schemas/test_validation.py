"""Validation of payloads: any bytes are accepted or raise Rejected, nothing else."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import Reason, Rejected
from tailrace.event import OutboxEvent, Route
from tailrace.records.plain import plain_record
from tailrace.schema_versions import Version
from tailrace.schemas.compiled import SchemaSet
from tailrace.schemas.json_schema import CompiledJsonSchema
from tailrace.schemas.strict_json import MAX_DEPTH
from tailrace.schemas.validation import PayloadValidator, Unknown

ORDER = {
    "type": "object",
    "required": ["id", "amount"],
    "properties": {
        "id": {"type": "string", "maxLength": 40},
        "amount": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "additionalProperties": False,
}
DEEP = {"anyOf": [{"not": {"type": "array"}}, {"items": {"allOf": [{"$ref": "#"}]}}]}


def validator(*documents: Any, unknown: Unknown = "dead_letter", max_bytes: int = 1_000_000) -> PayloadValidator:
    numbered = enumerate(documents or (ORDER,), 1)
    schemas = [
        CompiledJsonSchema.compile("Order", Version(number), document, f"{number}.json")
        for number, document in numbered
    ]
    return PayloadValidator(SchemaSet.of(schemas), unknown=unknown, max_bytes=max_bytes)


def event(payload: bytes | None, type_name: str = "Order", version: str | None = None) -> OutboxEvent:
    return OutboxEvent("e", type_name, "order", b"k", payload, version, "0/1:0", 1, [])


def rejection(check: PayloadValidator, subject: OutboxEvent) -> Rejected:
    with pytest.raises(Rejected) as caught:
        check.validate(subject, "t")
    return caught.value


def verdict(check: PayloadValidator, subject: OutboxEvent) -> Rejected | None:
    """Anything else that is raised is a failure of the test."""
    try:
        check.validate(subject, "t")
    except Rejected as rejected:
        return rejected
    return None


def test_validation_does_not_depend_on_earlier_payloads() -> None:
    check = validator({"oneOf": [{"required": ["x"]}, {"type": "string"}]})
    texts = [b'"hi"', b'{"x": 1}', b'{"y": 1}', b"1", b"[]"]
    before = {text: verdict(check, event(text)) is None for text in texts}
    assert before == {b'"hi"': False, b'{"x": 1}': True, b'{"y": 1}': False, b"1": True, b"[]": True}
    for _ in range(3):
        assert {text: verdict(check, event(text)) is None for text in texts} == before


@pytest.mark.parametrize("number", [b"1.", b".5", b"01", b"-", b"1e", b"1.e5", b"+1", b"0x1", b"1_0", b"NaN"])
def test_an_invalid_number_is_rejected_after_many_valid_ones(number: bytes) -> None:
    """A regular expression with possessive quantifiers took some of them for JSON on Python 3.11.0 to 3.11.4."""
    check = validator({"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]})
    for good in (b"1", b"1.5", b"-2e3", b"1.5"):
        assert verdict(check, event(b'{"n": ' + good + b"}")) is None
    assert rejection(check, event(b'{"n": ' + number + b"}")).reason is Reason.POISON_MESSAGE


@given(st.binary())
def test_any_bytes_pass_or_are_rejected(payload: bytes) -> None:
    rejected = verdict(validator({}), event(payload))
    if rejected is None:
        json.loads(payload)
    else:
        assert rejected.reason is Reason.POISON_MESSAGE


@given(
    st.fixed_dictionaries(
        {"id": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)}
        | {"amount": st.integers(0, 2**64 - 1)},
        optional={"tags": st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))},
    ),
    st.sampled_from([None, 1, "\t"]),
    st.booleans(),
)
def test_valid_payloads_pass_and_are_published_byte_for_byte(value: Any, indent: Any, ascii_only: Any) -> None:
    payload = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    original = bytes(payload)
    subject = event(payload)
    validator().validate(subject, "t")
    assert plain_record(subject, Route("t")).value == original


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_passes_or_is_rejected_with_a_bounded_explanation(value: Any) -> None:
    rejected = verdict(validator(), event(json.dumps(value).encode()))
    if rejected is not None:
        assert rejected.reason in {Reason.SCHEMA_VALIDATION_FAILED, Reason.POISON_MESSAGE}
        assert len(rejected.explanation) < 4096


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"NaN",
        b"[Infinity]",
        b'["\\u0000"]',
        b'{"\\u0000": 1}',
        b'["\\ud800"]',
        b"\xef\xbb\xbf{}",
        b'"\xff"',
        b"[" * 100000 + b"]" * 100000,
        b"[123456789012345678901234567890]",
        b"1e999",
        b"not json",
    ],
)
def test_unparsable_payloads_are_poison_messages(payload: bytes) -> None:
    rejected = rejection(validator({}), event(payload))
    assert rejected.reason is Reason.POISON_MESSAGE
    assert len(rejected.explanation) < 300


def test_a_recursive_schema_validates_the_deepest_allowed_payload() -> None:
    check = validator(DEEP)
    check.validate(event(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH), "t")
    rejected = rejection(check, event(b"[" * 1024 + b"]" * 1024))
    assert (rejected.reason, "nested" in rejected.explanation) == (Reason.POISON_MESSAGE, True)


@pytest.mark.timeout(20)
def test_patterns_run_in_linear_time() -> None:
    # A backtracking engine would practically never end.
    check = validator({"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}})
    check.validate(event(orjson.dumps({"a": "a" * 500_000})), "t")
    rejected = rejection(check, event(orjson.dumps({"a": "a" * 500_000 + "!"})))
    assert rejected.reason is Reason.SCHEMA_VALIDATION_FAILED
    assert "$.a: expected text that matches ^(a+)+$" in rejected.explanation


def test_a_tombstone_is_not_validated() -> None:
    validator().validate(event(None), "t")
    validator().validate(event(None, type_name="Unknown", version="x"), "t")


def test_the_size_is_checked_first_and_reported_with_the_limit() -> None:
    check = validator({}, max_bytes=10)
    check.validate(event(b'"12345678"'), "t")
    rejected = rejection(check, event(b"{" * 1234))
    assert rejected.reason is Reason.PERMANENT_FAILURE
    assert "1,234 bytes" in rejected.explanation
    assert "limit of 10" in rejected.explanation


def test_the_events_version_or_the_latest_is_used() -> None:
    check = validator({"const": 1}, {"const": 2})
    check.validate(event(b"1", version="1"), "t")
    check.validate(event(b"2", version="2"), "t")
    check.validate(event(b"2"), "t")
    assert "version 1 of Order" in rejection(check, event(b"2", version="1")).explanation
    assert "version 2 of Order" in rejection(check, event(b"1")).explanation


@pytest.mark.parametrize(
    ("type_name", "version", "file"), [("Order", "3", "Order/3.json"), ("Odd", None, "Odd/1.json")]
)
def test_a_missing_schema_is_reported_with_its_file_name(type_name: str, version: str | None, file: str) -> None:
    rejected = rejection(validator(), event(b"{}", type_name, version))
    assert rejected.reason is Reason.SCHEMA_VALIDATION_FAILED
    assert f"schemas/{file}" in rejected.remedy
    validator(unknown="pass").validate(event(b"not even json", type_name, version), "t")


def test_without_schemas_only_the_size_is_checked() -> None:
    check = PayloadValidator(None, unknown="pass", max_bytes=10)
    check.validate(event(b"not json"), "t")
    assert rejection(check, event(b"x" * 11)).reason is Reason.PERMANENT_FAILURE


@pytest.mark.parametrize("version", ["x", "", "1.0", "1.0.0-beta", "-1", "01", " 1", "1 ", "0", "٣", "1" * 5000])
def test_a_text_that_is_not_a_version_is_rejected(version: str) -> None:
    rejected = rejection(validator(), event(b"{}", version=version))
    assert rejected.reason is Reason.SCHEMA_VALIDATION_FAILED
    assert "is not a schema version. A version is a whole number" in rejected.explanation
    assert len(rejected.explanation) < 300
