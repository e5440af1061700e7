"""Tests of positions/postgres.py: strict parsing and formatting of LSNs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.positions.postgres import MAX_LSN, format_lsn, parse_lsn

LSNS = st.integers(0, MAX_LSN)


@pytest.mark.parametrize(
    ("text", "lsn"),
    [
        ("0/0", 0),
        ("0/1", 1),
        ("1/0", 1 << 32),
        ("16/B374D848", 0x16_B374_D848),
        ("FFFFFFFF/FFFFFFFF", MAX_LSN),
    ],
)
def test_an_lsn_is_parsed_and_formatted(text: str, lsn: int) -> None:
    assert parse_lsn(text) == lsn
    assert format_lsn(lsn) == text


@pytest.mark.parametrize("text", ["16/b374d848", "00000016/B374D848"])
def test_other_spellings_that_the_server_accepts_are_parsed(text: str) -> None:
    assert parse_lsn(text) == 0x16_B374_D848


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "1",
        "1/",
        "/1",
        "1/2/3",
        " 1/2",
        "1/2\n",
        "-1/2",
        "+1/2",
        "0x1/2",
        "1_0/2",
        "G/0",
        "١/0",
        "100000000/0",
        "0/100000000",
        "000000000/0",
    ],
)
def test_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an LSN"):
        parse_lsn(text)


@pytest.mark.parametrize("lsn", [-1, MAX_LSN + 1])
def test_a_number_out_of_range_is_refused(lsn: int) -> None:
    with pytest.raises(ValueError, match="not an LSN"):
        format_lsn(lsn)


@given(LSNS)
def test_any_lsn_is_formatted_and_parsed_unchanged(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn


@given(LSNS, LSNS)
def test_lsns_sort_by_their_halves(a: int, b: int) -> None:
    halves_a, halves_b = (tuple(int(half, 16) for half in format_lsn(lsn).split("/")) for lsn in (a, b))
    assert (a < b) == (halves_a < halves_b)


@given(st.text(max_size=20))
def test_any_text_is_an_lsn_or_a_value_error(text: str) -> None:
    try:
        lsn = parse_lsn(text)
    except ValueError:
        return
    assert 0 <= lsn <= MAX_LSN
