"""Versions of schemas: their texts, their order, and where they are stated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import SchemaVersionInvalid
from tailrace.schema_versions import (
    FIRST_VERSION,
    Version,
    parse_version,
    require_version,
    stated_version,
    version_at,
)

numbers = st.integers(min_value=0, max_value=999_999_999)
triples = st.tuples(numbers, numbers, numbers).filter(any)


@given(triples)
def test_a_version_is_read_back_from_its_text(triple: tuple[int, int, int]) -> None:
    version = Version(*triple)
    for text in version.spellings:
        parsed = parse_version(text)
        assert parsed == version
        assert str(parsed) == text
        assert hash(parsed) == hash(version)


@given(triples, triples)
def test_versions_are_ordered_by_their_numbers(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    assert (Version(*one) < Version(*other)) == (one < other)
    assert (Version(*one) == Version(*other)) == (one == other)


@given(st.text(alphabet="0123456789.v-+ _\n\u0663", max_size=8))
def test_a_text_is_a_version_only_in_its_one_form(text: str) -> None:
    parsed = parse_version(text)
    assert parsed is None or text in parsed.spellings


@pytest.mark.parametrize("text", ["1.0", "01", "1.0.0-beta", "1.0.0+1", "v1", "", "0", "0.0.0", "1" * 10, "1.0.0\n"])
def test_other_texts_are_named_errors(text: str) -> None:
    with pytest.raises(SchemaVersionInvalid, match="here: ") as caught:
        require_version(text, "here", remedy="Write 1.")
    assert repr(text) in caught.value.what
    assert "1.4.0" in caught.value.why


def test_a_whole_number_is_its_long_form() -> None:
    assert parse_version("2") == parse_version("2.0.0") == Version(2)
    assert parse_version("1.10.0") > parse_version("1.9.0")  # type: ignore[operator]


def test_the_next_version_has_the_form_of_this_one() -> None:
    following = {text: str(require_version(text, "", remedy="").next()) for text in ("1", "1.0.0", "1.9.7")}
    assert following == {"1": "2", "1.0.0": "1.1.0", "1.9.7": "1.10.0"}


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"a": {"version": "1.4.0"}}, "1.4.0"),
        ({"a": {"version": 2}}, "2"),
        ({"a": {"version": None}}, FIRST_VERSION),
        ({"a": {}}, FIRST_VERSION),
        ({"a": [1]}, FIRST_VERSION),
        (None, FIRST_VERSION),
        ({"a": {"version": 1.0}}, "1.0"),  # no version: the event is rejected
    ],
)
def test_an_absent_version_is_what_the_layout_says(document: object, found: str) -> None:
    assert version_at(document, ["a", "version"], absent=FIRST_VERSION) == found
    assert version_at({}, ["a", "version"]) is None


def test_a_document_states_its_version() -> None:
    assert stated_version({"x-version": "1.4.0"}) == Version(1, 4)
    assert [stated_version(each) for each in ({}, True, "string", {"x-version": 1}, {"x-version": "1.4"})] == [None] * 5
