"""Tests of positions/base.py: storing and parsing, order, and refused values."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import Action, WrongLog
from tailrace.positions.base import Position, from_stored, other_kind, to_stored
from tailrace.positions.first_read import FirstRead
from tailrace.positions.mongo import ClusterTime, StreamIdentity, TokenPosition
from tailrace.positions.postgres import MAX_LSN, Cut, LastTransaction, LogIdentity, LsnPosition, TableRead
from tailrace.positions.recovery_mark import Recovery

LSNS = st.integers(0, MAX_LSN)
ROWS = st.integers(0, 2**63)
TEXT = st.text(max_size=20)
LOG = LogIdentity("7", 1, "shop", "s", "public.outbox", "1/2/3")
STREAM = StreamIdentity("rs", "shop", {"outbox": "u"}, "f")

positions = st.builds(
    LsnPosition,
    st.builds(LogIdentity, TEXT, st.integers(1, 2**32), TEXT, TEXT, TEXT, TEXT),
    LSNS,
    st.integers(0, 2**50),
    st.none() | st.builds(Cut, LSNS, ROWS),
    st.none() | st.builds(TableRead, TEXT, st.none() | st.lists(st.none() | TEXT), ROWS, TEXT),
    st.booleans(),
    st.none()
    | st.builds(Recovery, TEXT, ROWS, st.none() | st.dictionaries(TEXT, TEXT), st.none() | ROWS, *[st.booleans()] * 2),
    ROWS,
    LSNS,
    st.none() | st.builds(LastTransaction, LSNS, ROWS, st.integers(-(2**62), 2**62)),
    TEXT,
    TEXT,
    st.none() | st.builds(FirstRead, TEXT, TEXT, ROWS),
)


@given(positions)
def test_a_stored_position_is_parsed_unchanged(position: LsnPosition) -> None:
    assert from_stored(json.loads(json.dumps(to_stored(position)))) == position


def test_the_stored_form_is_readable() -> None:
    stored = to_stored(LsnPosition(LOG, 0x16_B374_D848, 5, Cut(0x16_B374_E000, 3)))
    assert stored["lsn"] == "16/B374D848"
    assert stored["cut"] == {"commit_lsn": "16/B374E000", "rows": 3}
    assert "table_read" not in stored
    assert "creating" not in stored


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"source": "mongo"},
        {"lsn": "nonsense"},
        {"lsn": None},
        {"at_ms": "soon"},
        {"log": {"system_id": "7"}},
        {"log": {**asdict(LOG), "more": 1}},
        {"cut": {"rows": 3}},
        {"table_read": {"after": []}},
        {"last": {"commit_lsn": "0/5", "xid": 1}},
        {"last": {"commit_lsn": "0/5", "xid": "x", "commit_micros": 1}},
    ],
)
def test_an_invalid_position_is_refused(change: dict[str, Any]) -> None:
    stored = to_stored(LsnPosition(LOG, 5, 6)) | change
    with pytest.raises((ValueError, KeyError, TypeError)):
        from_stored(stored)


@pytest.mark.parametrize("field", ["format", "source", "lsn", "at_ms", "log"])
def test_an_incomplete_position_is_refused(field: str) -> None:
    stored = to_stored(LsnPosition(LOG, 5, 6))
    del stored[field]
    with pytest.raises(KeyError):
        from_stored(stored)


def test_progress_grows_from_creation_through_the_table_to_the_log() -> None:
    life = [
        LsnPosition(LOG, 0, 9, creating=True),
        LsnPosition(LOG, 50, 9, table_read=TableRead("1:1:")),
        LsnPosition(LOG, 50, 9),
        LsnPosition(LOG, 50, 9, Cut(70, 1)),
        LsnPosition(LOG, 50, 9, Cut(70, 2)),
        LsnPosition(LOG, 78, 9),
    ]
    for before, after in itertools.pairwise(life):
        assert before.progress < after.progress


LSN = LsnPosition(LOG, 5, 6)
TOKEN = TokenPosition(
    StreamIdentity("rs0", "shop", {"outbox": "ab"}, "f"), {"_data": "82"}, ClusterTime(5, 0), 6, begun="7"
)


@pytest.mark.parametrize(("position", "source"), [(LSN, "postgres"), (TOKEN, "mongo")])
def test_each_kind_of_log_is_parsed_as_its_own_class(position: Position, source: str) -> None:
    stored = json.loads(json.dumps(to_stored(position)))
    assert (stored["format"], stored["source"]) == (1, source)
    assert from_stored(stored) == position


@pytest.mark.parametrize(("position", "other"), [(LSN, "mongo"), (TOKEN, "postgres")])
def test_a_position_tagged_as_the_other_kind_is_refused(position: Position, other: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        from_stored(to_stored(position) | {"source": other})


@pytest.mark.parametrize("change", [{"format": 2}, {"source": "mysql"}, {"source": None}])
def test_a_position_of_a_newer_release_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is unknown"):
        from_stored(to_stored(TOKEN) | change)


def test_a_position_of_another_kind_of_database_stops_the_pipeline() -> None:
    refusal = other_kind(LSN, "MongoDB")
    assert type(refusal) is WrongLog
    assert refusal.action is Action.HALT
    assert refusal.what == "the stored position 0/5 is not a position of MongoDB"
    assert refusal.remedy


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (LsnPosition(LOG, 255, 9), "0/FF"),
        (LsnPosition(LOG, 255, 9, Cut(256, 3)), "0/FF+3 rows of 0/100"),
        (LsnPosition(LOG, 255, 9, table_read=TableRead("1:1:")), "0/FF (reading the table)"),
        (LsnPosition(LOG, 0, 9, creating=True), "creating the slot"),
    ],
)
def test_the_text_for_people(position: LsnPosition, text: str) -> None:
    assert str(position) == text


@pytest.mark.parametrize(
    ("position", "covered", "not_covered"),
    [
        (LsnPosition(LOG, 0x200, 0), ["0/1FF:9", "0/5:t3"], ["0/200:1", "0/201:1", "0/300:t1"]),
        (LsnPosition(LOG, 0x200, 0, Cut(0x300, 3)), ["0/1FF:1", "0/300:3"], ["0/300:4", "0/201:1"]),
        (LsnPosition(LOG, 0x200, 0, table_read=TableRead("", [], 3)), ["0/200:t3"], ["0/200:t4", "0/100:1"]),
        (LsnPosition(LOG, 0, 0, creating=True), [], ["0/1:1", "0/1:t1"]),
        (
            TokenPosition(STREAM, {"_data": "82"}, ClusterTime(7, 2), 0, ordinal=3),
            ["7.2:3", "7.1:9", "6.99:1", "5.9:0123456789abcdef"],
            ["7.2:4", "7.3:1", "8.1:1", "9.9:0123456789abcdef"],
        ),
        (TokenPosition(STREAM, {"_data": "82"}, ClusterTime(7, 2), 0), ["7.1:9"], ["7.2:1"]),
    ],
)
def test_which_rows_a_position_covers(position: Position, covered: list[str], not_covered: list[str]) -> None:
    assert [place for place in [*covered, *not_covered] if position.covers(place)] == covered


def test_progress_inside_a_transaction_ignores_the_lsn_before_it() -> None:
    early, late = LsnPosition(LOG, 0x100, 0, Cut(0x300, 5)), LsnPosition(LOG, 0x2F0, 0, Cut(0x300, 5))
    assert early.progress == late.progress
    assert LsnPosition(LOG, 0x300, 0).progress < early.progress < LsnPosition(LOG, 0x301, 0).progress


def test_positions_of_one_log_are_alike() -> None:
    lsn = LsnPosition(LOG, 5, 6)
    assert lsn.is_alike(LsnPosition(replace(LOG, publication="9/9/9"), 7, 8))
    assert not lsn.is_alike(LsnPosition(replace(LOG, timeline=2), 7, 8))
    assert not lsn.is_alike(LsnPosition(LOG, 7, 8, history="x"))
    token = TokenPosition(STREAM, {"_data": "82"}, ClusterTime(7, 2), 0)
    assert token.is_alike(
        TokenPosition(replace(STREAM, collections={"outbox": "v"}), {"_data": "83"}, ClusterTime(8, 2), 0)
    )
    assert not token.is_alike(TokenPosition(replace(STREAM, database="other"), {"_data": "82"}, ClusterTime(7, 2), 0))
    assert not token.is_alike(lsn)
    assert not lsn.is_alike(token)
