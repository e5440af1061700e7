"""Strict parsing: what comes back is exactly what the bytes say."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.schemas.json_text import MAX_DEPTH, NotJsonError, has_nul, parse

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES)
def test_whatever_can_be_held_comes_back(value: object) -> None:
    assert parse(json.dumps(value).encode()) == value
    assert parse(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary())
def test_any_bytes_are_a_value_or_not_json(text: bytes) -> None:
    try:
        value = parse(text)
    except NotJsonError:
        return
    assert json.loads(text) == value


@given(st.integers())
def test_an_integer_is_exact_or_refused(number: int) -> None:
    text = b'{"n": [%d]}' % number
    if -(2**63) <= number < 2**64:
        assert parse(text) == {"n": [number]}
    else:
        with pytest.raises(NotJsonError, match="digits"):
            parse(text)


@pytest.mark.parametrize(
    "number",
    [b"18446744073709551616", b"-9223372036854775809", b"2" + b"0" * 300, b"[-1" + b"0" * 200 + b"]"],
    ids=len,
)
def test_integers_beyond_64_bits_are_refused(number: bytes) -> None:
    with pytest.raises(NotJsonError, match="beyond 64 bits"):
        parse(number)


def test_an_integer_too_long_even_for_python_is_refused() -> None:
    with pytest.raises(NotJsonError):
        parse(b"1" * 5000)


@pytest.mark.parametrize(
    "text",
    [
        b'"123456789012345678901234567890"',
        b'{"12345678901234567890123": "\\"99999999999999999999999"}',
        b"0.1234567890123456789012345",
        b"1.0e0000000000000000000000001",
        b"18446744073709551615",
        b"-9223372036854775808",
    ],
)
def test_long_runs_of_digits_that_are_no_huge_integers_pass(text: bytes) -> None:
    assert parse(text) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"[1,]",
        b"{'a':1}",
        b'"\\ud800"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf{}",
        b'"\x00"',
        b"1e400",
        b"01",
        b"{}{}",
        b"[" * 100000,
        b"[" * 100000 + b"]" * 100000,
        b'{"a":' * 100000,
        b"\xff\xfe{\x00}\x00",
    ],
)
def test_what_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(NotJsonError):
        parse(text)


@pytest.mark.parametrize("opening", [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_allowed_up_to_the_limit(opening: tuple[bytes, bytes]) -> None:
    left, right = opening
    inner = b"[]"
    parse(left * (MAX_DEPTH - 1) + inner + right * (MAX_DEPTH - 1))
    with pytest.raises(NotJsonError, match="nested"):
        parse(left * MAX_DEPTH + inner + right * MAX_DEPTH)


def test_many_brackets_side_by_side_are_not_depth() -> None:
    assert len(parse(orjson.dumps([[{}]] * 5000))) == 5000


@given(st.text())
def test_nul_is_found_exactly_where_it_is(text: str) -> None:
    assert has_nul(json.dumps(text).encode()) == ("\0" in text)


@pytest.mark.parametrize(("text", "found"), [(b'"\\u0000"', True), (b'"\\\\u0000"', False), (b'"\\\\\\u0000"', True)])
def test_an_escaped_backslash_before_u0000_is_no_nul(text: bytes, found: bool) -> None:
    assert has_nul(text) is found
    assert ("\0" in parse(text)) is found
