"""The resume check: decides from stored position, slot and server whether and where streaming may start.

A position is never guessed and never skipped. What cannot be resumed safely is refused with a named error; with
`adopt` the user accepts the slot as it is now.
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
    """The result of IDENTIFY_SYSTEM: the cluster, its timeline, and the end of its log."""

    system_id: str
    timeline: int
    lsn: int
    database: str

    def log(self, slot: str, table: str, publication: str) -> LogIdentity:
        """Returns the identity of what a slot of this server sends; `publication` is its fingerprint."""
        return LogIdentity(self.system_id, self.timeline, self.database, slot, table, publication)


@dataclass(frozen=True, slots=True)
class SlotState:
    """The needed columns of a row in pg_replication_slots."""

    name: str
    plugin: str
    database: str
    active_pid: int | None
    confirmed_lsn: int
    wal_status: str
    invalidation: str | None
    retained_bytes: int
    safe_bytes: int | None
    """WAL that may still be written before the server removes WAL of the slot; None without a limit."""


class ResumeAction(Enum):
    """The next step of a start."""

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
    """Decides how to start; raises a named error if a start is not safe."""
    if slot is not None and slot.active_pid is not None and (stored is not None or adopt):
        raise SlotBusy(
            f"the slot {slot.name} is in use by the server process {slot.active_pid}",
            why="Another instance streams from it, or the server has not noticed yet that it is gone.",
            remedy="Tailrace waits and retries.",
        )
    if adopt and slot is not None and (stored is None or not stored.creating):
        return _adopt(stored, found, slot, server_lsn)
    if stored is None:
        if slot is not None:
            raise _unclaimed(slot)
        return ResumeDecision(ResumeAction.CREATE)
    if stored.creating:
        # Nothing was read yet, so nothing can be missing; only a slot of another pipeline must be refused.
        if slot is None:
            return ResumeDecision(ResumeAction.CREATE)
        _same_log(stored, replace(found, publication=stored.log.publication))
        return ResumeDecision(ResumeAction.RECREATE)
    _same_log(stored, found)
    if slot is None:
        raise SlotMissing(
            f"the stored position is {stored}, but there is no slot {found.slot}",
            why="It was dropped, or this server is a replica or a restored copy without the slot.",
            remedy="Rows committed since then are in the outbox table, not in the stream: `tailrace recover plan FILE` "
            "finds them, `recover apply` publishes them and creates the slot. To continue without them: "
            f"SELECT pg_create_logical_replication_slot('{found.slot}', 'pgoutput'); then start once with --adopt.",
        )
    _usable(slot, found)
    if slot.confirmed_lsn > stored.lsn:
        raise SlotAhead(
            f"the slot {slot.name} is confirmed up to {format_lsn(slot.confirmed_lsn)}, "
            f"beyond the stored position {stored}",
            why="Someone moved it (pg_replication_slot_advance), or another reader used it.",
            remedy="Rows between the two are in the outbox table, not in the stream: `tailrace recover plan FILE` "
            "finds them, `recover apply` publishes them. To continue without them, start once with --adopt.",
        )
    if stored.lsn > server_lsn:
        raise PositionAhead(
            f"the stored position {stored} is beyond the end of the server's log, {format_lsn(server_lsn)}",
            why="The server was restored from a backup, or lost its last writes.",
            remedy="`tailrace recover plan FILE` compares the outbox table with the topics, `recover apply` publishes "
            "what is missing. To continue from the slot as it is, start once with --adopt.",
        )
    return ResumeDecision(ResumeAction.STREAM, stored)


def _adopt(stored: LsnPosition | None, found: LogIdentity, slot: SlotState, server_lsn: int) -> ResumeDecision:
    _usable(slot, found)
    if (
        stored is not None
        and replace(stored.log, publication=found.publication) == found
        and slot.confirmed_lsn <= stored.lsn <= server_lsn
    ):
        # Only the publication may differ: the position is still valid, and better than the slot's. A position beyond
        # the server's log is not: the server would skip everything up to it. The last transaction is not expected
        # again: the publication may be younger than it, and the user may accept a different log.
        return ResumeDecision(ResumeAction.STREAM, replace(stored, log=found, last=None))
    lsn = slot.confirmed_lsn
    at_ms, history, begun = (stored.at_ms, stored.history, stored.begun) if stored is not None else (0, "", "")
    first_read = stored.first_read if stored is not None else None
    if stored is not None and stored.lsn > server_lsn:
        # Transaction ids are used again from there on.
        history, begun, first_read = (
            f"adopted at {format_lsn(lsn)}",
            "",
            first_read and replace(first_read, snapshot=""),
        )
    if stored is not None and stored.log.system_id != found.system_id:
        begun, first_read = "", first_read and replace(first_read, snapshot="")
    last = LastTransaction(lsn)
    return ResumeDecision(
        ResumeAction.STREAM,
        LsnPosition(found, lsn, at_ms, last=last, history=history, begun=begun, first_read=first_read),
    )


def expected_transactions(start: LsnPosition, until: LsnPosition | None, confirmed_lsn: int) -> list[LastTransaction]:
    """Returns the transactions that the server must send from `start.resume_lsn` on if its log is the known one.

    A slot that is confirmed beyond a transaction has sent it before. `until` is the position before a rewind.
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
    """Raises if this is another server than that of the position; to be called before its catalog is used."""
    log = stored.log
    _same_log(stored, replace(log, system_id=server.system_id, timeline=server.timeline, database=server.database))


def require_same_past(stored: LsnPosition, until: LsnPosition, server: ServerIdentity, followed: LsnPosition) -> None:
    """Raises if the server lacks rows up to `until`, the position that the pipeline was rewound from.

    `followed` is `until` on the server's timeline, if it exists there. New rows could otherwise get positions that were
    published before. A pipeline that has moved to another log since was checked there.
    """
    if not stored.is_alike(until):
        return
    if followed.log.timeline != server.timeline:
        raise WrongLog(
            f"the pipeline was rewound from {until}, which belongs to timeline {until.log.timeline}; this is timeline "
            f"{server.timeline}, which does not contain it",
            why="The server was restored or failed over, and lacks some of what was published before.",
            remedy="`tailrace recover plan FILE` compares the outbox table with the topics, `recover apply` publishes "
            "what is missing. To accept it as it is, start once with --adopt.",
        )
    if until.lsn > server.lsn:
        raise PositionAhead(
            f"the pipeline was rewound from {until}, beyond the end of the server's log, {format_lsn(server.lsn)}",
            why="The server was restored from a backup, or lost its last writes.",
            remedy="`tailrace recover plan FILE` compares the outbox table with the topics, `recover apply` publishes "
            "what is missing. To continue from the slot as it is, start once with --adopt.",
        )


def _same_log(stored: LsnPosition, found: LogIdentity) -> None:
    for field in fields(LogIdentity):
        before, now = getattr(stored.log, field.name), getattr(found, field.name)
        if before == now:
            continue
        if field.name == "publication":
            raise PublicationBroken(
                "the publication was changed or re-created, or the table was removed from it and added again",
                why=f"Its catalog rows changed from {before} to {now}: rows committed meanwhile may not be in the "
                "stream.",
                remedy="`tailrace recover plan FILE` finds in the table what was missed, `recover apply` publishes it. "
                "To continue without it, start once with --adopt.",
            )
        raise WrongLog(
            f"the stored position {stored} belongs to {field.name} {before}, this is {field.name} {now}",
            why="The settings point to another server or table, or the server was restored or failed over.",
            remedy="Correct source.postgres, source.slot or source.table. If the server was restored or failed over, "
            "`tailrace recover plan FILE` finds what was missed. To accept it as it is, start once with --adopt.",
        )


def _usable(slot: SlotState, found: LogIdentity) -> None:
    if slot.plugin != "pgoutput" or slot.database != found.database:
        raise WrongLog(
            f"the slot {slot.name} has plugin {slot.plugin} and belongs to database {slot.database}",
            why=f"Tailrace needs pgoutput in database {found.database}.",
            remedy="Choose another name in source.slot.",
        )
    if slot.wal_status == "lost" or slot.invalidation:
        raise SlotLost(
            f"the slot {slot.name} is invalidated ({slot.invalidation or 'wal_removed'})",
            why="The server removed WAL that the slot still needed (max_slot_wal_keep_size or an idle timeout).",
            remedy="Rows committed since the stored position are in the outbox table, not in the stream: `tailrace "
            "recover plan FILE` finds them, `recover apply` publishes them and re-creates the slot. To continue "
            "without them, drop the slot, create it and start once with --adopt.",
        )
