"""The furthest position that a pipeline ever reached."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.positions.postgres import LogIdentity, LsnPosition
from tailrace.recovery.plan import furthest
from tailrace.state.rewind_marker import Rewind

LOG = LogIdentity("7", 1, "shop", "s", "public.outbox", "1/2/3")
AT = LsnPosition(LOG, 0x120, 0)
UNTIL = LsnPosition(replace(LOG, publication="4/2/3"), 0x200, 0)
REWIND = Rewind("r1", LsnPosition(LOG, 0x100, 0), UNTIL, 0)


@pytest.mark.parametrize(
    ("stored", "rewind", "found"),
    [
        (None, REWIND, None),
        (AT, None, AT),
        (AT, REWIND, UNTIL),
        (replace(AT, lsn=0x300), REWIND, replace(AT, lsn=0x300)),
        # It has continued elsewhere since.
        (replace(AT, log=replace(LOG, timeline=2)), REWIND, replace(AT, log=replace(LOG, timeline=2))),
    ],
)
def test_a_rewound_pipeline_was_further(
    stored: LsnPosition | None, rewind: Rewind | None, found: LsnPosition | None
) -> None:
    assert furthest(stored, rewind) == found
