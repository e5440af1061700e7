"""admission.py: every branch of the judgement over stored position, slot and server."""

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


def judged(
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
def test_what_may_start(stored: LsnPosition | None, slot: SlotState | None, step: ResumeAction) -> None:
    admission = judged(stored, slot)
    assert admission == ResumeDecision(step, stored if step is ResumeAction.STREAM else None)


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
def test_what_may_not(
    stored: LsnPosition | None, slot: SlotState | None, found: LogIdentity, error: type[TailraceError]
) -> None:
    with pytest.raises(error) as caught:
        judged(stored, slot, found=found)
    assert caught.type is error
    assert caught.value.remedy
    assert (caught.value.action is Action.RETRY) == (error is SlotBusy)


def test_an_unknown_slot_that_is_in_use_is_not_waited_for() -> None:
    """It is another pipeline's: waiting would not make it ours."""
    with pytest.raises(SlotUnclaimed):
        judged(None, replace(SLOT, active_pid=9))


@pytest.mark.parametrize("slot", [None, SLOT])
def test_an_intention_survives_a_new_publication(slot: SlotState | None) -> None:
    """Nothing was read through the old one, so there is nothing that it could have passed over."""
    assert judged(LsnPosition(LOG, 0, 5, creating=True), slot, found=NEW_PUBLICATION).position is None


def test_an_intention_of_another_server_with_no_slot_here_is_a_first_start() -> None:
    stored = LsnPosition(LOG, 0, 5, creating=True)
    assert judged(stored, None, found=replace(LOG, system_id="8")).step is ResumeAction.CREATE


@pytest.mark.parametrize(
    ("last", "until", "confirmed", "wanted"),
    [
        (KNOWN, None, 90, [KNOWN]),
        (KNOWN, None, 91, []),  # the slot has had it: it is of one history with its log
        (None, None, 50, []),
        (LastTransaction(90), None, 50, []),  # nothing was read yet
        (None, replace(AT, lsn=300, last=LATER), 50, [LATER]),
        (KNOWN, replace(AT, lsn=300, last=LATER), 50, [KNOWN, LATER]),
        (KNOWN, replace(AT, lsn=300, last=KNOWN), 50, [KNOWN]),
        (KNOWN, replace(AT, lsn=300, last=LATER, history="x"), 50, [KNOWN]),
        (LATER, replace(AT, last=KNOWN), 50, [LATER]),  # what it was set back from is passed
    ],
)
def test_which_transactions_must_come_again(
    last: LastTransaction | None, until: LsnPosition | None, confirmed: int, wanted: list[LastTransaction]
) -> None:
    found = expected_transactions(replace(AT, last=last), until, confirmed)
    assert sorted(found, key=lambda each: each.commit_lsn) == wanted


class TestAdopt:
    def test_no_position(self) -> None:
        assert judged(None, SLOT, adopt=True) == ResumeDecision(
            ResumeAction.STREAM, LsnPosition(LOG, 100, 0, last=BEGINS)
        )

    def test_no_slot_and_no_position_is_a_first_start(self) -> None:
        assert judged(None, None, adopt=True).step is ResumeAction.CREATE

    def test_no_slot_still_is_missing(self) -> None:
        with pytest.raises(SlotMissing):
            judged(AT, None, adopt=True)

    def test_an_intention_is_carried_out(self) -> None:
        assert judged(LsnPosition(LOG, 0, 5, creating=True), SLOT, adopt=True).step is ResumeAction.RECREATE

    @pytest.mark.parametrize("cut", [None, Cut(150, 3)])
    def test_a_new_publication_keeps_the_position(self, cut: Cut | None) -> None:
        stored = replace(AT, lsn=120, cut=cut)
        assert judged(replace(stored, last=LastTransaction(110, 7, 9)), SLOT, adopt=True).position == stored
        admission = judged(stored, SLOT, found=NEW_PUBLICATION, adopt=True)
        assert admission == ResumeDecision(ResumeAction.STREAM, replace(stored, log=NEW_PUBLICATION))

    def test_a_slot_ahead_is_taken_where_it_stands(self) -> None:
        admission = judged(replace(AT, cut=Cut(120, 3)), replace(SLOT, confirmed_lsn=500), adopt=True)
        assert admission == ResumeDecision(ResumeAction.STREAM, LsnPosition(LOG, 500, 5, last=LastTransaction(500)))

    def test_another_log_is_taken_from_its_slot(self) -> None:
        promoted = replace(LOG, timeline=2)
        admission = judged(replace(AT, lsn=500), SLOT, found=promoted, adopt=True)
        assert admission == ResumeDecision(ResumeAction.STREAM, LsnPosition(promoted, 100, 5, last=BEGINS))

    def test_a_position_beyond_the_log_is_not_kept(self) -> None:
        """The server would pass over everything up to it, silently; and what was noted of it is of another history."""
        admission = judged(replace(AT, lsn=END + 1), SLOT, adopt=True)
        new = LsnPosition(LOG, 100, 5, last=BEGINS, history="adopted at 0/64")
        assert admission == ResumeDecision(ResumeAction.STREAM, new)

    @pytest.mark.parametrize(
        ("slot", "error"),
        [
            (replace(SLOT, active_pid=9), SlotBusy),
            (replace(SLOT, wal_status="lost"), SlotLost),
            (replace(SLOT, plugin="wal2json"), WrongLog),
        ],
    )
    def test_what_cannot_be_adopted(self, slot: SlotState, error: type[TailraceError]) -> None:
        for stored in (None, AT):
            with pytest.raises(error):
                judged(stored, slot, adopt=True)
