"""Postgres's log as far as the pipeline's slot holds it: from what it has confirmed to the end of the server's log.

Any LSN in between is a place to start: the server sends every transaction whose commit lies at or behind it. An LSN
that is older than what the slot has confirmed would be moved forward by the server, silently; so it is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from tailrace.errors import ConfigError, WrongLog
from tailrace.positions.base import Position, other_kind
from tailrace.positions.postgres import LogIdentity, LsnPosition, format_lsn, parse_lsn
from tailrace.replay.points import Lsn, Moment, Oldest, Point
from tailrace.replay.source_log import describe_position, format_time, not_of_this, out_of_reach
from tailrace.sources.postgres import catalog as catalogue
from tailrace.sources.postgres import publication
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.resume_check import check_resume
from tailrace.sources.postgres.table_rescan import require_same_log
from tailrace.state import position_history
from tailrace.state.position_history import PositionEntry

DISORDER_MS = 2000
FORMS = "a time, an LSN such as `0/1A2B3C8`, `event:ID`, or `oldest`"


class PostgresLog:
    """Implements `Log`. The slot may be in use meanwhile: that is for whoever wants to rewind it to forbid."""

    def __init__(self, options: PostgresOptions, stored: Position, entries: Sequence[PositionEntry]) -> None:
        if not isinstance(stored, LsnPosition):
            raise other_kind(stored, "Postgres")
        with ExitStack() as links:
            control = links.enter_context(options.connect())
            stream = links.enter_context(options.connect(replication=True))
            catalogue.require_able(control)
            server = catalogue.identify(stream)
            published = publication.read_published(control, options)
            slot = catalogue.read_slot(control, options.slot)
        self._log = LogIdentity(
            server.system_id, server.timeline, server.database, options.slot, options.table, published.fingerprint
        )
        free = None if slot is None else replace(slot, active_pid=None)
        check_resume(stored, self._log, free, server_lsn=server.lsn, adopt=False)
        if slot is not None and slot.active_pid is None:
            require_same_log(options, stored)  # while it is read, whoever reads it has seen to that
        self._stored = stored
        self._floor = slot.confirmed_lsn if slot else stored.lsn
        self._end = server.lsn
        # A publication that was changed and adopted leaves the log the same.
        same = replace(self._log, publication="")
        self._entries = [
            entry
            for entry in entries
            if isinstance(entry.position, LsnPosition)
            and replace(entry.position.log, publication="") == same
            and entry.position.history == stored.history
        ]

    @property
    def oldest(self) -> LsnPosition:
        return self._at_lsn(self._floor)

    def at(self, point: Point) -> Position:
        match point:
            case Oldest():
                return self.oldest
            case Lsn(value):
                return self.at_lsn(value)
            case Moment(at_ms):
                return self._at_time(at_ms)
        raise not_of_this(str(point), FORMS)

    def at_place(self, place: str) -> Position:
        """Right before the transaction of the row at `place`."""
        commit, _, number = place.partition(":")
        if number.startswith("t"):
            out_of_reach(
                f"the event at {place} was in the table before the slot began",
                "The log has never brought it.",
                [f"`oldest`, {describe_position(self.oldest)}"],
            )
        return self.at_lsn(parse_lsn(commit))

    def at_lsn(self, lsn: int) -> Position:
        return self.renewed(self._at_lsn(lsn))

    def renewed(self, position: Position) -> LsnPosition:
        if not isinstance(position, LsnPosition):
            raise not_of_this(str(position), FORMS)
        if replace(position.log, publication=self._log.publication) != self._log:
            raise WrongLog(
                f"{position} is a place in another log",
                why=f"It is of {position.log.database} on system {position.log.system_id}, timeline "
                f"{position.log.timeline}; this is {self._log.database} on {self._log.system_id}, timeline "
                f"{self._log.timeline}.",
                remedy="Name a point of this log.",
            )
        if position.lsn > self._end:
            raise ConfigError(
                f"{position} lies in the future: the server's log ends at {format_lsn(self._end)}",
                remedy="Name a point of the past.",
            )
        if position.lsn < self._floor:
            out_of_reach(
                f"the log no longer reaches back to {describe_position(position)}",
                f"The slot has confirmed everything before {format_lsn(self._floor)}: the server may have removed it.",
                [f"`oldest`, {describe_position(self.oldest)}"],
            )
        # What is known of the table is known of it as it is now, wherever the log is read from.
        return replace(position, log=self._log, watched=self._stored.watched, begun=self._stored.begun)

    def _at_time(self, at_ms: int) -> Position:
        # Times of commits are nearly, not quite, in the order of the log.
        entry = position_history.before(self._entries, at_ms - DISORDER_MS)
        if entry is None or not isinstance(entry.position, LsnPosition):
            first = (
                [f"{format_time(self._entries[0].position.at_ms)}, where the ledger begins"] if self._entries else []
            )
            out_of_reach(
                f"where the pipeline was at {format_time(at_ms)} is not known",
                "The ledger has no entry from before that." if self._entries else "The ledger has no entry yet.",
                [*first, f"`oldest`, {describe_position(self.oldest)}"],
            )
        # Inside a transaction that was published in parts: as a whole it was committed later than asked for.
        at = self.renewed(entry.position)
        return at if at.cut is None else replace(at, cut=None, last=None)

    def _at_lsn(self, lsn: int) -> LsnPosition:
        """Its time is that of the last known place before it: for people, and for lag."""
        known = [entry.position for entry in self._entries if isinstance(entry.position, LsnPosition)]
        before = [position.at_ms for position in (*known, self._stored) if position.lsn <= lsn]
        stored = self._stored
        return LsnPosition(
            self._log, lsn, max(before, default=0), watched=stored.watched, history=stored.history, begun=stored.begun
        )

    def close(self) -> None:
        """Its connections are closed already: what was asked once is the answer."""
