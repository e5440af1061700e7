"""Tests of resume_check.py: every decision from stored position, slot and server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.errors import (
    Action,
    PositionAhead,
    PublicationBroken,
    SlotAhead,
    SlotBusy,
    SlotLost,
    SlotMissing,
    SlotUnclaimed,
    TailraceError,
    WrongLog,
)
from tailrace.positions.postgres import Cut, LastTransaction, LogIdentity, LsnPosition, TableRead
from tailrace.sources.postgres.resume_check import (
    ResumeAction,
    ResumeDecision,
    SlotState,
    check_resume,
    expected_transactions,
)

LOG = LogIdentity("7", 1, "shop", "tailrace_shop", "public.outbox", "1.9/2/3")
NEW_PUBLICATION = replace(LOG, publication="4.9/5/3")
SLOT = SlotState("tailrace_shop", "pgoutput", "shop", None, 100, "reserved", None, 0, None)
AT = LsnPosition(LOG, 100, 5)
BEGINS, KNOWN, LATER = LastTransaction(100), LastTransaction(90, 7, 9), LastTransaction(290, 8, 10)
END = 1000


def decided(
    stored: LsnPosition | None, slot: SlotState | None, *, found: LogIdentity = LOG, adopt: bool = False
) -> ResumeDecision:
    return check_resume(stored, found, slot, server_lsn=END, adopt=adopt)


@pytest.mark.parametrize(
    ("stored", "slot", "step"),
    [
        (None, None, ResumeAction.CREATE),
        (LsnPosition(LOG, 0, 5, creating=True), None, ResumeAction.CREATE),
        (LsnPosition(LOG, 0, 5, creating=True), SLOT, ResumeAction.RECREATE),
        (AT, SLOT, ResumeAction.STREAM),
        (replace(AT, lsn=END), SLOT, ResumeAction.STREAM),
        (replace(AT, cut=Cut(120, 3)), SLOT, ResumeAction.STREAM),
        (replace(AT, table_read=TableRead("1:1:")), SLOT, ResumeAction.STREAM),
        (AT, replace(SLOT, wal_status="extended"), ResumeAction.STREAM),
        (AT, replace(SLOT, wal_status="unreserved"), ResumeAction.STREAM),
    ],
)
def test_positions_that_can_be_resumed(stored: LsnPosition | None, slot: SlotState | None, step: ResumeAction) -> None:
    decision = decided(stored, slot)
    assert decision == ResumeDecision(step, stored if step is ResumeAction.STREAM else None)


@pytest.mark.parametrize(
    ("stored", "slot", "found", "error"),
    [
        (None, SLOT, LOG, SlotUnclaimed),
        (AT, None, LOG, SlotMissing),
        (AT, replace(SLOT, active_pid=9), LOG, SlotBusy),
        (LsnPosition(LOG, 0, 5, creating=True), replace(SLOT, active_pid=9), LOG, SlotBusy),
        (AT, replace(SLOT, confirmed_lsn=101), LOG, SlotAhead),
        (replace(AT, cut=Cut(120, 3)), replace(SLOT, confirmed_lsn=101), LOG, SlotAhead),
        (AT, replace(SLOT, wal_status="lost"), LOG, SlotLost),
        (AT, replace(SLOT, invalidation="idle_timeout"), LOG, SlotLost),
        (AT, replace(SLOT, plugin="wal2json"), LOG, WrongLog),
        (AT, replace(SLOT, database="other"), LOG, WrongLog),
        (replace(AT, lsn=END + 1), SLOT, LOG, PositionAhead),
        (AT, SLOT, replace(LOG, system_id="8"), WrongLog),
        (AT, SLOT, replace(LOG, timeline=2), WrongLog),
        (AT, SLOT, replace(LOG, database="other"), WrongLog),
        (AT, SLOT, replace(LOG, slot="other"), WrongLog),
        (AT, SLOT, replace(LOG, table="public.other"), WrongLog),
        (AT, SLOT, NEW_PUBLICATION, PublicationBroken),
        (AT, None, NEW_PUBLICATION, PublicationBroken),
        (LsnPosition(LOG, 0, 5, creating=True), SLOT, replace(LOG, system_id="8"), WrongLog),
    ],
)
def test_positions_that_cannot_be_resumed(
    stored: LsnPosition | None, slot: SlotState | None, found: LogIdentity, error: type[TailraceError]
) -> None:
    with pytest.raises(error) as caught:
        decided(stored, slot, found=found)
    assert caught.type is error
    assert caught.value.remedy
    assert (caught.value.action is Action.RETRY) == (error is SlotBusy)


def test_an_unknown_slot_that_is_in_use_is_not_waited_for() -> None:
    """It belongs to another pipeline: waiting would not help."""
    with pytest.raises(SlotUnclaimed):
        decided(None, replace(SLOT, active_pid=9))


@pytest.mark.parametrize("slot", [None, SLOT])
def test_an_unfinished_creation_survives_a_new_publication(slot: SlotState | None) -> None:
    """Nothing was read through the old one, so nothing can have been missed."""
    assert decided(LsnPosition(LOG, 0, 5, creating=True), slot, found=NEW_PUBLICATION).position is None


def test_an_unfinished_creation_on_another_server_is_a_first_start() -> None:
    stored = LsnPosition(LOG, 0, 5, creating=True)
    assert decided(stored, None, found=replace(LOG, system_id="8")).step is ResumeAction.CREATE


@pytest.mark.parametrize(
    ("last", "until", "confirmed", "wanted"),
    [
        (KNOWN, None, 90, [KNOWN]),
        (KNOWN, None, 91, []),  # the slot has confirmed it: it belongs to this log
        (None, None, 50, []),
        (LastTransaction(90), None, 50, []),  # nothing was read yet
        (None, replace(AT, lsn=300, last=LATER), 50, [LATER]),
        (KNOWN, replace(AT, lsn=300, last=LATER), 50, [KNOWN, LATER]),
        (KNOWN, replace(AT, lsn=300, last=KNOWN), 50, [KNOWN]),
        (KNOWN, replace(AT, lsn=300, last=LATER, history="x"), 50, [KNOWN]),
        (LATER, replace(AT, last=KNOWN), 50, [LATER]),  # the position before the rewind is passed
    ],
)
def test_which_transactions_must_be_received_again(
    last: LastTransaction | None, until: LsnPosition | None, confirmed: int, wanted: list[LastTransaction]
) -> None:
    found = expected_transactions(replace(AT, last=last), until, confirmed)
    assert sorted(found, key=lambda each: each.commit_lsn) == wanted


class TestAdopt:
    def test_no_position(self) -> None:
        assert decided(None, SLOT, adopt=True) == ResumeDecision(
            ResumeAction.STREAM, LsnPosition(LOG, 100, 0, last=BEGINS)
        )

    def test_no_slot_and_no_position_is_a_first_start(self) -> None:
        assert decided(None, None, adopt=True).step is ResumeAction.CREATE

    def test_a_missing_slot_is_still_an_error(self) -> None:
        with pytest.raises(SlotMissing):
            decided(AT, None, adopt=True)

    def test_an_unfinished_creation_is_completed(self) -> None:
        assert decided(LsnPosition(LOG, 0, 5, creating=True), SLOT, adopt=True).step is ResumeAction.RECREATE

    @pytest.mark.parametrize("cut", [None, Cut(150, 3)])
    def test_a_new_publication_keeps_the_position(self, cut: Cut | None) -> None:
        stored = replace(AT, lsn=120, cut=cut)
        assert decided(replace(stored, last=LastTransaction(110, 7, 9)), SLOT, adopt=True).position == stored
        decision = decided(stored, SLOT, found=NEW_PUBLICATION, adopt=True)
        assert decision == ResumeDecision(ResumeAction.STREAM, replace(stored, log=NEW_PUBLICATION))

    def test_a_slot_ahead_is_used_from_its_position(self) -> None:
        decision = decided(replace(AT, cut=Cut(120, 3)), replace(SLOT, confirmed_lsn=500), adopt=True)
        assert decision == ResumeDecision(ResumeAction.STREAM, LsnPosition(LOG, 500, 5, last=LastTransaction(500)))

    def test_another_log_is_read_from_its_slot(self) -> None:
        promoted = replace(LOG, timeline=2)
        decision = decided(replace(AT, lsn=500), SLOT, found=promoted, adopt=True)
        assert decision == ResumeDecision(ResumeAction.STREAM, LsnPosition(promoted, 100, 5, last=BEGINS))

    def test_a_position_beyond_the_log_is_not_kept(self) -> None:
        """The server would silently skip everything up to it; its last transaction is of another log."""
        decision = decided(replace(AT, lsn=END + 1), SLOT, adopt=True)
        new = LsnPosition(LOG, 100, 5, last=BEGINS, history="adopted at 0/64")
        assert decision == ResumeDecision(ResumeAction.STREAM, new)

    @pytest.mark.parametrize(
        ("slot", "error"),
        [
            (replace(SLOT, active_pid=9), SlotBusy),
            (replace(SLOT, wal_status="lost"), SlotLost),
            (replace(SLOT, plugin="wal2json"), WrongLog),
        ],
    )
    def test_slots_that_cannot_be_adopted(self, slot: SlotState, error: type[TailraceError]) -> None:
        for stored in (None, AT):
            with pytest.raises(error):
                decided(stored, slot, adopt=True)
