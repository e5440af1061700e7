"""position.py: there and back, its order, and what is refused."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.lsn import MAX_LSN
from tailrace.position import Cut, LogIdentity, Position, TableRead

LSNS = st.integers(0, MAX_LSN)
ROWS = st.integers(0, 2**63)
TEXT = st.text(max_size=20)
LOG = LogIdentity("7", 1, "shop", "s", "public.outbox", "1/2/3")

positions = st.builds(
    Position,
    st.builds(LogIdentity, TEXT, st.integers(1, 2**32), TEXT, TEXT, TEXT, TEXT),
    LSNS,
    st.integers(0, 2**50),
    st.none() | st.builds(Cut, LSNS, ROWS),
    st.none() | st.builds(TableRead, TEXT, st.none() | st.lists(st.none() | TEXT), ROWS),
    st.booleans(),
)


@given(positions)
def test_there_and_back(position: Position) -> None:
    assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position


def test_the_stored_form_is_readable() -> None:
    stored = Position(LOG, 0x16_B374_D848, 5, Cut(0x16_B374_E000, 3)).to_json()
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
    ],
)
def test_what_is_not_a_position_is_refused(change: dict[str, Any]) -> None:
    stored = Position(LOG, 5, 6).to_json() | change
    with pytest.raises((ValueError, KeyError, TypeError)):
        Position.from_json(stored)


@pytest.mark.parametrize("field", ["format", "source", "lsn", "at_ms", "log"])
def test_an_incomplete_one_is_refused(field: str) -> None:
    stored = Position(LOG, 5, 6).to_json()
    del stored[field]
    with pytest.raises(KeyError):
        Position.from_json(stored)


def test_progress_is_in_the_order_of_a_pipelines_life() -> None:
    life = [
        Position(LOG, 0, 9, creating=True),
        Position(LOG, 50, 9, table_read=TableRead("1:1:")),
        Position(LOG, 50, 9),
        Position(LOG, 50, 9, Cut(70, 1)),
        Position(LOG, 50, 9, Cut(70, 2)),
        Position(LOG, 78, 9),
    ]
    for before, after in itertools.pairwise(life):
        assert before.progress < after.progress


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (Position(LOG, 255, 9), "0/FF"),
        (Position(LOG, 255, 9, Cut(256, 3)), "0/FF+3 rows of 0/100"),
        (Position(LOG, 255, 9, table_read=TableRead("1:1:")), "0/FF (reading the table)"),
        (Position(LOG, 0, 9, creating=True), "creating the slot"),
    ],
)
def test_what_a_person_reads(position: Position, text: str) -> None:
    assert str(position) == text
