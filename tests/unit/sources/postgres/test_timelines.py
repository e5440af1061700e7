"""Tests of timelines.py: which positions are valid in the log of a server that was promoted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.errors import PositionAhead, WrongLog
from tailrace.positions.postgres import Cut, LogIdentity, LsnPosition, TableRead
from tailrace.positions.recovery_mark import Recovery
from tailrace.sources.postgres.resume_check import ServerIdentity, require_same_past
from tailrace.sources.postgres.timelines import followed, forks

LOG = LogIdentity("7", 1, "shop", "tailrace_shop", "public.outbox", "1.9/2/3")
AT = LsnPosition(LOG, 400, 5)
PROMOTED = ServerIdentity("7", 3, 1000, "shop")
LEFT = {1: 500, 2: 700}


def test_a_history_of_timelines_is_parsed() -> None:
    assert forks("1\t0/1F4\tno recovery target specified\n") == {1: 500}
    assert forks("") == {}
    assert forks("1\t0/1F4\twhy\n\n2\t1/0\twhy not\n") == {1: 500, 2: 2**32}


@pytest.mark.parametrize(
    "position",
    [
        AT,
        replace(AT, lsn=500),
        replace(AT, log=replace(LOG, timeline=2), lsn=700),
        replace(AT, cut=Cut(499, 3)),
    ],
)
def test_positions_before_the_fork_move_to_the_new_timeline(position: LsnPosition) -> None:
    assert followed(position, PROMOTED, LEFT) == replace(position, log=replace(position.log, timeline=3))


@pytest.mark.parametrize(
    ("position", "server", "left"),
    [
        (replace(AT, lsn=501), PROMOTED, LEFT),
        # Published in part, and its commit is not in the new log.
        (replace(AT, cut=Cut(500, 3)), PROMOTED, LEFT),
        (AT, PROMOTED, {}),
        # Of another branch, which is not in the history.
        (replace(AT, log=replace(LOG, timeline=4)), PROMOTED, LEFT),
        (AT, replace(PROMOTED, system_id="8"), LEFT),
        (AT, replace(PROMOTED, database="other"), LEFT),
        (replace(AT, table_read=TableRead("1:1:")), PROMOTED, LEFT),
        (replace(AT, lsn=0, creating=True), PROMOTED, LEFT),
        (replace(AT, recovery=Recovery("r", 1)), PROMOTED, LEFT),
    ],
)
def test_other_positions_are_unchanged(position: LsnPosition, server: ServerIdentity, left: dict[int, int]) -> None:
    assert followed(position, server, left) == position


def past(until: LsnPosition, *, stored: LsnPosition = AT, server: ServerIdentity = PROMOTED) -> None:
    """Checks a pipeline that was rewound from `until` to `stored` before its server was promoted."""
    require_same_past(stored, until, server, followed(until, server, LEFT))


@pytest.mark.parametrize(
    ("until", "error"),
    [
        (replace(AT, lsn=501), WrongLog),
        (replace(AT, cut=Cut(500, 3)), WrongLog),
        (replace(AT, lsn=501, log=replace(LOG, publication="4.9/5/3")), WrongLog),
    ],
)
def test_a_rewind_from_a_position_that_the_server_lacks(until: LsnPosition, error: type[Exception]) -> None:
    """However far it was rewound: events published behind the fork are not in the server's log."""
    with pytest.raises(error, match=r"rewound from 0/"):
        past(until)


def test_a_rewind_from_beyond_the_end_of_the_log() -> None:
    with pytest.raises(PositionAhead, match="rewound from 0/3E9"):
        past(replace(AT, lsn=1001), server=replace(PROMOTED, timeline=1))


@pytest.mark.parametrize(
    ("until", "stored"),
    [
        (replace(AT, lsn=500), AT),
        # Adopted: it has continued in the new log.
        (replace(AT, lsn=501), replace(AT, log=replace(LOG, timeline=3))),
        (replace(AT, log=replace(LOG, timeline=3), lsn=900), replace(AT, log=replace(LOG, timeline=3))),
    ],
)
def test_a_rewind_from_a_position_that_the_server_has(until: LsnPosition, stored: LsnPosition) -> None:
    past(until, stored=stored)
