"""What a glance knows obeys: held against the parser and the validator, which it stands in for."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tailrace.schemas.glance.json_schema import parts_of
from tailrace.schemas.glance.looking import Glance, LearningGlance
from tailrace.schemas.glance.spelling import NEVER, STYLES, Unknown
from tailrace.schemas.glance.texts import FORMATS
from tailrace.schemas.json_contract import JsonContract
from tailrace.schemas.json_text import NotJsonError, has_nul, parse

SEPARATORS = [tuple(style) for style in STYLES]
LOOKED_AT = re.compile(r"[^\\\x00-\x1f]*").fullmatch
"""Others are not looked at."""
PATTERNS = [
    "^[A-Z]{3}$", "^INV-[0-9]{2,4}$", "^a+b?$", r"^\d{1,3}\.\d$", "^(red|green|re)$", r"^\w+$", "^[a-c -]*x$", "^ab",
    r"^[!-\]]+$", "^(?:ab|c)*$", "^a*a$", r"^[\w.-]{2,5}$",
]  # fmt: skip

words = st.sampled_from(["a", "b", "name", "ä", "line items", "x:y", 'quo"te', "{", "["])
texts = st.one_of(
    st.sampled_from(
        ["", "EUR", "INV-123", "aab", "12.3", "red", "re", "ab x", "abab", "ä", "€uro", "a\\b", "[]", "{}"]
    ),
    st.text(max_size=8),
)
whole = st.one_of(st.integers(-25, 25), st.integers(-(10**18), 10**18), st.sampled_from([999, 1000, 1001, 10**9]))
bounds = st.one_of(st.integers(-12, 120), st.sampled_from([0, 1, 99, 100, 999, 1000, 10**9, -(10**9), 10.0, 10**17]))


def _keywords(**of: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=of)


strings = st.one_of(
    _keywords(minLength=st.integers(0, 4), maxLength=st.integers(0, 12)),
    st.builds(
        lambda rest, pattern: {**rest, "pattern": pattern},
        _keywords(minLength=st.integers(0, 3), maxLength=st.integers(2, 9)),
        st.sampled_from(PATTERNS),
    ),
    st.builds(lambda name: {"format": name}, st.sampled_from(sorted(FORMATS))),
).map(lambda rest: {"type": "string", **rest})
limits = st.one_of(
    _keywords(minimum=bounds, maximum=bounds),
    _keywords(exclusiveMinimum=bounds, maximum=bounds),
    _keywords(minimum=bounds, exclusiveMaximum=bounds),
    _keywords(exclusiveMinimum=bounds, exclusiveMaximum=bounds),
)
numbers = st.builds(lambda rest, kind: {"type": kind, **rest}, limits, st.sampled_from(["integer", "number"]))
listed = st.lists(st.one_of(texts, whole, st.booleans(), st.none()), min_size=1, max_size=4).map(
    lambda values: {"enum": values}
)
scalars = st.one_of(
    strings,
    numbers,
    listed,
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {}, True, {"type": ["integer", "null"], "minimum": 3}]),
    st.builds(lambda one: {"anyOf": [one, {"type": "null"}]}, st.one_of(strings, numbers)),
    st.builds(lambda one: {"oneOf": [{"type": "null"}, one]}, st.one_of(strings, numbers)),
    st.just({"$ref": "#/$defs/shared"}),
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda properties, required, other: {
            "type": "object",
            "properties": properties,
            "required": [key for key in required if key in properties],
            **other,
        },
        st.dictionaries(words, inner, max_size=4),
        st.lists(words, unique=True, max_size=3),
        st.sampled_from([{}, {"additionalProperties": False}, {"additionalProperties": {"type": "integer"}}]),
    )


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda items, rest: {"type": "array", "items": items, **rest},
        inner,
        _keywords(minItems=st.integers(0, 2), maxItems=st.integers(1, 4)),
    )


schemas = st.recursive(scalars, lambda inner: st.one_of(_objects(inner), _arrays(inner)), max_leaves=6).map(
    lambda schema: (
        {**schema, "$defs": {"shared": {"type": "string", "maxLength": 3}}} if isinstance(schema, dict) else schema
    )
)


@st.composite
def values(draw: st.DrawFn, schema: Any, document: Any) -> Any:
    """A value that probably obeys, and perhaps not quite."""
    if not isinstance(schema, dict) or draw(st.integers(0, 40)) == 0:
        return draw(st.one_of(texts, whole, st.booleans(), st.none(), st.floats(allow_nan=False, width=32)))
    if "$ref" in schema:
        return draw(values(document["$defs"]["shared"], document))
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return draw(values(draw(st.sampled_from(schema[choice])), document))
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    kind = schema.get("type")
    kind = draw(st.sampled_from(kind)) if isinstance(kind, list) else kind
    if kind == "object":
        others = draw(st.lists(words, unique=True, max_size=2))
        keys = draw(st.permutations(list(dict.fromkeys([*schema["properties"], *others]))))
        left_out = draw(st.sets(st.sampled_from(keys), max_size=2)) - set(schema["required"]) if keys else set()
        inner = {key: schema["properties"].get(key, schema.get("additionalProperties", {})) for key in keys}
        return {key: draw(values(inner[key], document)) for key in keys if key not in left_out}
    if kind == "array":
        return draw(st.lists(values(schema["items"], document), max_size=5))
    if kind == "string":
        if "pattern" in schema and draw(st.booleans()):
            return draw(st.from_regex(re.compile(schema["pattern"], re.ASCII)))
        if "format" in schema and draw(st.booleans()):
            return draw(spelled(FORMATS[schema["format"]]))
        return draw(texts)
    if kind in ("integer", "number"):
        near = [schema[name] for name in schema if name.lower().endswith(("minimum", "maximum"))]
        steps = st.sampled_from([-1, 0, 1, 0.0, 0.5, -0.5, 1e-6, -1e-6, 1e-12, 0.999999, 12.25])
        return draw(st.one_of(whole, st.builds(lambda at, by: at + by, st.sampled_from(near or [0]), steps)))
    return draw(st.sampled_from([True, False, None, "x"]))


def spelled(expression: str) -> st.SearchStrategy[str]:
    """Texts of one of our expressions; what it never gives back is of no matter to those who make texts up."""
    plain = expression.replace("(?>", "(?:").replace("*+", "*").replace("?+", "?").replace("}+", "}")
    return st.from_regex(plain, fullmatch=True, alphabet=st.characters(exclude_categories=["Cs"]))


def _obeys(text: bytes, document: Any) -> bool:
    try:
        value = parse(text)
    except NotJsonError:
        return False
    return not has_nul(text) and JsonContract.compile("s", 1, document, "f").is_valid(value)


def _glance(document: Any, samples: list[Any], separators: tuple[str, str]) -> Glance:
    """One that has learned from those of the samples that obey."""
    try:
        glance = LearningGlance(parts_of(document))
    except Unknown:
        return Glance()
    for sample in samples:
        text = json.dumps(sample, ensure_ascii=False, separators=separators).encode()
        if glance.look(text, False) is None and _obeys(text, document):
            glance.learn(text, parse(text), rewritten=False)
    return glance


@given(st.data(), schemas, st.sampled_from(SEPARATORS))
def test_what_a_glance_knows_obeys(data: st.DataObject, document: Any, separators: tuple[str, str]) -> None:
    samples = [data.draw(values(document, document)) for _ in range(4)]
    glance = _glance(document, samples, separators)
    for sample in [*samples, data.draw(values(document, document))]:
        text = json.dumps(sample, ensure_ascii=data.draw(st.booleans()), separators=separators).encode()
        for one in (text, *(_disturbed(data, text) for _ in range(8))):
            if glance.look(one, False) is not None:
                event("known")
                assert _obeys(one, document), one


def _disturbed(data: st.DataObject, text: bytes) -> bytes:
    """With one place changed: a character more, fewer or other, or a piece said twice."""
    at = data.draw(st.integers(0, len(text)))
    to = data.draw(st.integers(at, min(at + data.draw(st.sampled_from([0, 1, 2, 12])), len(text))))
    new = data.draw(
        st.one_of(
            st.sampled_from([b"", b",", b", ", b'"', b"{", b"}", b"[", b"]", b":", b" ", b"0", b"1", b"9", b".", b"-"]),
            st.sampled_from(
                [b"e1", b"\\", b"\\u0000", b"\0", b"\n", b"\xff", "ä".encode(), b"null", b"true", b"-0", b"00"]
            ),
            st.just(text[at:to] * 2),
            st.just(text),
        )
    )
    return text[:at] + new + text[to:]


@given(st.data(), schemas, st.sampled_from(SEPARATORS))
def test_every_text_of_the_expression_obeys(data: st.DataObject, document: Any, separators: tuple[str, str]) -> None:
    try:
        part = parts_of(document)
    except Unknown:
        return
    for _ in range(3):
        sample = data.draw(values(document, document))
        if JsonContract.compile("s", 1, document, "f").is_valid(sample):
            part.learn(sample)
    expression = part.spell(STYLES[SEPARATORS.index(separators)])
    if NEVER in expression:
        return
    text = data.draw(spelled(expression))
    if LOOKED_AT(text) and re.fullmatch(expression, text):
        assert _obeys(text.encode(), document), text


@pytest.mark.parametrize("name", sorted(FORMATS))
@settings(max_examples=40)
@given(st.data())
def test_formats_are_those_of_the_validator(name: str, data: st.DataObject) -> None:
    validator = jsonschema_rs.validator_for({"format": name}, validate_formats=True)
    assert not validator.is_valid("no such thing as this")
    text = data.draw(spelled(FORMATS[name]))
    if re.fullmatch(FORMATS[name], text):
        assert validator.is_valid(text), text


@pytest.mark.parametrize("pattern", PATTERNS)
@given(st.data())
def test_patterns_are_those_of_the_validator(pattern: str, data: st.DataObject) -> None:
    document = {"type": "string", "pattern": pattern}
    part = parts_of(document)
    text = data.draw(st.one_of(st.from_regex(re.compile(pattern, re.ASCII)), texts))
    written = json.dumps(text, ensure_ascii=False)
    if LOOKED_AT(written) and re.fullmatch(part.spell(STYLES[0]), written):
        assert _obeys(written.encode(), document), text
