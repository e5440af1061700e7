"""May streaming start, and where? The judgement over stored position, slot and server. Pure.

The rule behind every branch: a position is never guessed and never skipped. Whatever cannot be continued safely is
refused with a named error; `adopt` is how a person says that the slot, as it is now, is to be taken.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum

from tailrace.errors import (
    PositionAhead,
    PublicationBroken,
    SlotAhead,
    SlotBusy,
    SlotLost,
    SlotMissing,
    SlotUnclaimed,
    WrongLog,
)
from tailrace.positions.postgres import LastTransaction, LogIdentity, LsnPosition, format_lsn


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The answer to IDENTIFY_SYSTEM: which cluster, on which timeline, how far its log reaches."""

    system_id: str
    timeline: int
    lsn: int
    database: str


@dataclass(frozen=True, slots=True)
class SlotState:
    """A row of pg_replication_slots, as far as it matters here."""

    name: str
    plugin: str
    database: str
    active_pid: int | None
    confirmed_lsn: int
    wal_status: str
    invalidation: str | None
    retained_bytes: int
    safe_bytes: int | None
    """What may still be written before the server drops WAL the slot needs; None without such a bound."""


class ResumeAction(Enum):
    """What comes next."""

    CREATE = "create the slot"
    RECREATE = "drop the slot that was never used, and create it"
    STREAM = "stream from the position"


@dataclass(frozen=True, slots=True)
class ResumeDecision:
    step: ResumeAction
    position: LsnPosition | None = None


def check_resume(
    stored: LsnPosition | None, found: LogIdentity, slot: SlotState | None, *, server_lsn: int, adopt: bool
) -> ResumeDecision:
    """Decides how to start, or raises the named error that says why not."""
    if slot is not None and slot.active_pid is not None and (stored is not None or adopt):
        raise SlotBusy(
            f"the slot {slot.name} is in use by the server process {slot.active_pid}",
            why="Another instance streams from it, or the server has not yet noticed that it is gone.",
            remedy="Tailrace waits and tries again.",
        )
    if adopt and slot is not None and (stored is None or not stored.creating):
        return _adopt(stored, found, slot, server_lsn)
    if stored is None:
        if slot is not None:
            raise _unclaimed(slot)
        return ResumeDecision(ResumeAction.CREATE)
    if stored.creating:
        # Nothing was ever read, so nothing can have been passed over: only a slot that may not be ours matters.
        if slot is None:
            return ResumeDecision(ResumeAction.CREATE)
        _same_log(stored, replace(found, publication=stored.log.publication))
        return ResumeDecision(ResumeAction.RECREATE)
    _same_log(stored, found)
    if slot is None:
        raise SlotMissing(
            f"the stored position is {stored}, but there is no slot {found.slot}",
            why="It was dropped, or this server is a replica or a restored copy without it.",
            remedy="Rows committed since then are in the outbox table, not in the stream: `tailrace recover plan FILE` "
            "finds them, `recover apply` publishes them and creates the slot. To go on without them: "
            f"SELECT pg_create_logical_replication_slot('{found.slot}', 'pgoutput'); then start once with --adopt.",
        )
    _usable(slot, found)
    if slot.confirmed_lsn > stored.lsn:
        raise SlotAhead(
            f"the slot {slot.name} is confirmed up to {format_lsn(slot.confirmed_lsn)}, "
            f"beyond the stored position {stored}",
            why="Someone moved it (pg_replication_slot_advance), or another reader used it.",
            remedy="Rows between the two are in the outbox table, not in the stream: `tailrace recover plan FILE` "
            "finds them, `recover apply` publishes them. To go on without them, start once with --adopt.",
        )
    if stored.lsn > server_lsn:
        raise PositionAhead(
            f"the stored position {stored} is beyond the end of the server's log, {format_lsn(server_lsn)}",
            why="The server was restored from a backup, or lost its last writes.",
            remedy="`tailrace recover plan FILE` compares the outbox table with the topics, `recover apply` publishes "
            "what is missing. To go on from the slot as it is, start once with --adopt.",
        )
    return ResumeDecision(ResumeAction.STREAM, stored)


def _adopt(stored: LsnPosition | None, found: LogIdentity, slot: SlotState, server_lsn: int) -> ResumeDecision:
    _usable(slot, found)
    if (
        stored is not None
        and replace(stored.log, publication=found.publication) == found
        and slot.confirmed_lsn <= stored.lsn <= server_lsn
    ):
        # At most the publication differs: the position itself is still true, and better than the slot's. One beyond the
        # server's log is not: the server would pass over everything up to it. That the log is the one that was read is
        # not asked: the publication may be younger than the last transaction, and a log that differs may be meant.
        return ResumeDecision(ResumeAction.STREAM, replace(stored, log=found, last=None))
    lsn = slot.confirmed_lsn
    at_ms, history, begun = (stored.at_ms, stored.history, stored.begun) if stored is not None else (0, "", "")
    if stored is not None and stored.lsn > server_lsn:
        # Numbers of transactions are given out again from there on.
        history, begun = f"adopted at {format_lsn(lsn)}", ""
    if stored is not None and stored.log.system_id != found.system_id:
        begun = ""
    return ResumeDecision(
        ResumeAction.STREAM, LsnPosition(found, lsn, at_ms, last=LastTransaction(lsn), history=history, begun=begun)
    )


def expected_transactions(start: LsnPosition, until: LsnPosition | None, confirmed_lsn: int) -> list[LastTransaction]:
    """Which transactions the server must send if its log is the one that was read, asked from `start.resume_lsn` on.

    A slot that is confirmed beyond a transaction has had it: the slot and its log are of one history. `until` is how
    far the pipeline was before it was set back.
    """
    begins = max(start.resume_lsn, confirmed_lsn)
    known = {start.last, until.last if until is not None and start.is_alike(until) else None}
    return [each for each in known if each is not None and each.xid and each.commit_lsn >= begins]


def _unclaimed(slot: SlotState) -> SlotUnclaimed:
    return SlotUnclaimed(
        f"the slot {slot.name} exists, but the offsets topic holds no position for it",
        why="The offsets topic was deleted or is another one, or the slot belongs to another pipeline.",
        remedy="Check kafka.offsets_topic, pipeline and source.slot. If the position is lost, "
        "`tailrace recover plan FILE` compares the outbox table with the topics. To read the slot from where it stands "
        f"({format_lsn(slot.confirmed_lsn)}), start once with --adopt; events published after that point come again.",
    )


def require_same_server(stored: LsnPosition, server: ServerIdentity) -> None:
    """Refuses another server before anything else of it is looked at: its catalogue would only mislead."""
    log = stored.log
    _same_log(stored, replace(log, system_id=server.system_id, timeline=server.timeline, database=server.database))


def require_same_past(stored: LsnPosition, until: LsnPosition, server: ServerIdentity, followed: LsnPosition) -> None:
    """Refuses a server that lacks some of what was published before the pipeline was set back: up to `until`.

    `followed` is `until` as far as it is a place in the server's log. New rows would stand at places that were
    published before, and be taken for those. A pipeline that has gone on in another log since was judged there.
    """
    if not stored.is_alike(until):
        return
    if followed.log.timeline != server.timeline:
        raise WrongLog(
            f"the pipeline was set back from {until}, which belongs to timeline {until.log.timeline}; this is timeline "
            f"{server.timeline}, which does not reach back to there",
            why="The server was restored or failed over, and lacks some of what was published before.",
            remedy="`tailrace recover plan FILE` compares the outbox table with the topics, `recover apply` publishes "
            "what is missing. To take it as it is, start once with --adopt.",
        )
    if until.lsn > server.lsn:
        raise PositionAhead(
            f"the pipeline was set back from {until}, beyond the end of the server's log, {format_lsn(server.lsn)}",
            why="The server was restored from a backup, or lost its last writes.",
            remedy="`tailrace recover plan FILE` compares the outbox table with the topics, `recover apply` publishes "
            "what is missing. To go on from the slot as it is, start once with --adopt.",
        )


def _same_log(stored: LsnPosition, found: LogIdentity) -> None:
    for field in fields(LogIdentity):
        before, now = getattr(stored.log, field.name), getattr(found, field.name)
        if before == now:
            continue
        if field.name == "publication":
            raise PublicationBroken(
                "the publication was changed, or dropped and created anew, or the table was taken out and put back",
                why=f"Its catalogue rows changed from {before} to {now}: rows committed meanwhile may not be in the "
                "stream.",
                remedy="`tailrace recover plan FILE` finds in the table what was missed, `recover apply` publishes it. "
                "To go on without it, start once with --adopt.",
            )
        raise WrongLog(
            f"the stored position {stored} belongs to {field.name} {before}, this is {field.name} {now}",
            why="The settings point to another server or table, or the server was restored or failed over.",
            remedy="Mend source.postgres, source.slot or source.table. If the server was restored or failed over, "
            "`tailrace recover plan FILE` finds what was missed. To take it as it is, start once with --adopt.",
        )


def _usable(slot: SlotState, found: LogIdentity) -> None:
    if slot.plugin != "pgoutput" or slot.database != found.database:
        raise WrongLog(
            f"the slot {slot.name} is of plugin {slot.plugin} in database {slot.database}",
            why=f"Tailrace needs pgoutput in database {found.database}.",
            remedy="Choose another name in source.slot.",
        )
    if slot.wal_status == "lost" or slot.invalidation:
        raise SlotLost(
            f"the slot {slot.name} is invalidated ({slot.invalidation or 'wal_removed'})",
            why="The server removed WAL that the slot still needed (max_slot_wal_keep_size or an idle timeout).",
            remedy="Rows committed since the stored position are in the outbox table, not in the stream: `tailrace "
            "recover plan FILE` finds them, `recover apply` publishes them and creates the slot anew. To go on without "
            "them, drop the slot, create it and start once with --adopt.",
        )
