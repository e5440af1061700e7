"""Strict parsing: the value is exactly what the bytes say, or the text is rejected."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tailrace.schemas.strict_json import MAX_DEPTH, NotJsonError, has_nul, parse

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES)
def test_every_supported_value_is_parsed_unchanged(value: object) -> None:
    assert parse(json.dumps(value).encode()) == value
    assert parse(json.dumps(value, ensure_ascii=False).encode()) == value


@given(VALUES)
def test_values_are_parsed_unchanged_if_keys_are_known_to_be_unique(value: object) -> None:
    assert parse(json.dumps(value).encode(), keys_unique=True) == value


@given(st.binary())
def test_any_bytes_are_parsed_or_rejected(text: bytes) -> None:
    try:
        value = parse(text)
    except NotJsonError:
        return
    assert json.loads(text) == value


@given(st.integers(), st.booleans())
def test_an_integer_is_exact_or_refused(number: int, keys_unique: bool) -> None:
    text = b'{"n": [%d]}' % number
    if -(2**63) <= number < 2**64:
        assert parse(text, keys_unique=keys_unique) == {"n": [number]}
    else:
        with pytest.raises(NotJsonError, match="digits"):
            parse(text, keys_unique=keys_unique)


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
def test_long_runs_of_digits_that_are_not_integers_pass(text: bytes) -> None:
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
def test_invalid_json_is_refused(text: bytes) -> None:
    with pytest.raises(NotJsonError):
        parse(text)


@pytest.mark.parametrize("keys_unique", [False, True])
@pytest.mark.parametrize("opening", [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_allowed_up_to_the_limit(opening: tuple[bytes, bytes], keys_unique: bool) -> None:
    left, right = opening
    inner = b"[]"
    parse(left * (MAX_DEPTH - 1) + inner + right * (MAX_DEPTH - 1), keys_unique=keys_unique)
    with pytest.raises(NotJsonError, match="nested"):
        parse(left * MAX_DEPTH + inner + right * MAX_DEPTH, keys_unique=keys_unique)


def test_many_brackets_side_by_side_are_not_depth() -> None:
    assert len(parse(orjson.dumps([[{}]] * 5000))) == 5000


@given(st.text())
def test_has_nul_finds_exactly_the_texts_with_nul(text: str) -> None:
    assert has_nul(json.dumps(text).encode()) == ("\0" in text)


@pytest.mark.parametrize(("text", "found"), [(b'"\\u0000"', True), (b'"\\\\u0000"', False), (b'"\\\\\\u0000"', True)])
def test_an_escaped_backslash_before_u0000_is_no_nul(text: bytes, found: bool) -> None:
    assert has_nul(text) is found
    assert ("\0" in parse(text)) is found


class Pairs(list[tuple[str, Any]]):
    """An object as it is written, with keys that may repeat."""


NAMES = st.text(st.sampled_from('a :"\\\\u3Aé😀'), max_size=3)
WRITTEN = st.recursive(
    st.sampled_from([None, True, 0, -1.5, 1e300, 2**64 - 1]) | NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(NAMES, inner), max_size=4).map(Pairs),
    max_leaves=12,
)


def repeats(tree: Any) -> bool:
    """Returns whether an object of the tree repeats a key."""
    if isinstance(tree, Pairs):
        return len({key for key, _ in tree}) < len(tree) or any(repeats(child) for _, child in tree)
    return isinstance(tree, list) and any(map(repeats, tree))


def meant(tree: Any) -> Any:
    """Returns the value of a tree without repeated keys."""
    if isinstance(tree, Pairs):
        return {key: meant(child) for key, child in tree}
    return [meant(child) for child in tree] if isinstance(tree, list) else tree


@st.composite
def texts(draw: st.DrawFn, tree: Any) -> str:
    """A JSON text for the tree, with any white space and with any character escaped or not."""

    def gap() -> str:
        return draw(st.sampled_from(["", "", "", " ", "\n\t", "  "]))

    def character(char: str) -> str:
        plain = json.dumps(char, ensure_ascii=False)[1:-1]
        units = char.encode("utf-16-be").hex()
        escaped = "".join("\\u" + units[start : start + 4] for start in range(0, len(units), 4))
        return draw(st.sampled_from([plain, escaped, escaped.upper().replace("U", "u")]))

    def written(node: Any) -> str:
        if isinstance(node, Pairs):
            members = (f"{gap()}{written(key)}{gap()}:{gap()}{written(child)}{gap()}" for key, child in node)
            return "{" + (",".join(members) or gap()) + "}"
        if isinstance(node, list):
            return "[" + ",".join(f"{gap()}{written(child)}{gap()}" for child in node) + "]"
        return '"' + "".join(map(character, node)) + '"' if isinstance(node, str) else json.dumps(node)

    return gap() + written(tree) + gap()


@settings(max_examples=600, deadline=None)  # a busy machine may draw slowly
@given(st.data())
def test_only_objects_with_repeated_keys_are_refused(data: st.DataObject) -> None:
    tree = data.draw(WRITTEN)
    text = data.draw(texts(tree)).encode()
    event(f"repeats: {repeats(tree)}")
    if repeats(tree):
        with pytest.raises(NotJsonError, match="more than once"):
            parse(text)
    else:
        assert parse(text) == meant(tree)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":1}',
        b'{"a":1,"\\u0061":2}',
        b'[[{"x":{"a":1,"b":2,"a":3}}]]',
        b'{"":0,"":0}',
        '{"\\ud83d\\ude00":1,"😀":2}'.encode(),
        # The colon that was dropped with the key comes back from an escape, so the counts are equal.
        b'{"a":1,"a":"\\u003a"}',
        b'{"a":1,"b":"\\u003A","a":1}',
        b'{"\\u003a":1,":":1}',
        b'{"a":"::","a":"\\u003a\\u003a\\u003a"}',
    ],
)
def test_repeated_keys_are_found_in_every_spelling(text: bytes) -> None:
    with pytest.raises(NotJsonError, match="more than once"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":{"a":{"a":[{"a":1},{"a":1}]}}}',
        b'{"a":1,"A":1,"a ":1}',
        b'{"\\u003a":1}',
        b'{"\\\\u003a":1,"\\u003c":2}',
        b'{":::":":::", "b" : "\\":\\""}',
    ],
)
def test_similar_but_different_keys_pass(text: bytes) -> None:
    assert parse(text) == json.loads(text)


def test_the_message_shows_only_the_shortened_name_of_a_repeated_key() -> None:
    with pytest.raises(NotJsonError) as caught:
        parse(b'{"card":"4111-1111","card":"4222-2222"}')
    assert str(caught.value) == "an object has the key 'card' more than once"
    with pytest.raises(NotJsonError) as caught:
        parse(b'{"%s":1,"%s":2}' % (b"k" * 5000, b"k" * 5000))
    assert "k" * 79 + "…" in str(caught.value)
    assert "k" * 80 not in str(caught.value)


def test_a_repeated_key_at_the_deepest_level_is_found() -> None:
    with pytest.raises(NotJsonError, match="more than once"):
        parse(b"[" * (MAX_DEPTH - 1) + b'{"a":1,"a":2}' + b"]" * (MAX_DEPTH - 1))
