"""The log of Postgres as far as the pipeline's slot keeps it: from its confirmed LSN to the end.

A replay can start at any LSN in between: the server sends every transaction whose commit is at or behind it. The server
would silently move an older LSN forward, so it is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from tailrace.errors import ConfigError, WrongLog
from tailrace.positions.base import Position, other_kind
from tailrace.positions.postgres import LsnPosition, format_lsn, parse_lsn
from tailrace.replay.points import Lsn, Moment, Oldest, Point
from tailrace.replay.source_log import describe_position, format_time, not_a_point, out_of_reach
from tailrace.sources.postgres import catalog, publication
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.resume_check import check_resume
from tailrace.sources.postgres.table_rescan import require_same_log
from tailrace.state import position_history
from tailrace.state.position_history import PositionEntry

DISORDER_MS = 2000
FORMS = "a time, an LSN such as `0/1A2B3C8`, `event:ID`, or `oldest`"


class PostgresLog:
    """Implements `SourceLog`. The slot may be in use; a rewind must check that itself."""

    def __init__(self, options: PostgresOptions, stored: Position, entries: Sequence[PositionEntry]) -> None:
        if not isinstance(stored, LsnPosition):
            raise other_kind(stored, "Postgres")
        with ExitStack() as links:
            control = links.enter_context(options.connect())
            stream = links.enter_context(options.connect(replication=True))
            catalog.require_able(control)
            server = catalog.identify(stream)
            published = publication.read_published(control, options)
            slot = catalog.read_slot(control, options.slot)
        self._log = server.log(options.slot, options.table, published.fingerprint)
        free = None if slot is None else replace(slot, active_pid=None)
        check_resume(stored, self._log, free, server_lsn=server.lsn, adopt=False)
        if slot is not None and slot.active_pid is None:
            require_same_log(options, stored)  # the process that reads it now has checked that
        self._stored = stored
        self._floor = slot.confirmed_lsn if slot else stored.lsn
        self._end = server.lsn
        # The log is the same if a publication was changed and adopted.
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
        raise not_a_point(str(point), FORMS)

    def at_event_position(self, position: str) -> Position:
        """Returns the position right before the transaction of a row."""
        commit, _, number = position.partition(":")
        if number.startswith("t"):
            out_of_reach(
                f"the event at {position} was in the table before the slot began",
                "It was never in the log.",
                [f"`oldest`, {describe_position(self.oldest)}"],
            )
        return self.at_lsn(parse_lsn(commit))

    def at_lsn(self, lsn: int) -> Position:
        return self.validated(self._at_lsn(lsn))

    def validated(self, position: Position) -> LsnPosition:
        if not isinstance(position, LsnPosition):
            raise not_a_point(str(position), FORMS)
        if replace(position.log, publication=self._log.publication) != self._log:
            raise WrongLog(
                f"{position} is a position in another log",
                why=f"It belongs to {position.log.database} on system {position.log.system_id}, timeline "
                f"{position.log.timeline}; this is {self._log.database} on {self._log.system_id}, timeline "
                f"{self._log.timeline}.",
                remedy="Give a point in this log.",
            )
        if position.lsn > self._end:
            raise ConfigError(
                f"{position} is in the future: the server's log ends at {format_lsn(self._end)}",
                remedy="Give a point in the past.",
            )
        if position.lsn < self._floor:
            out_of_reach(
                f"the log no longer reaches back to {describe_position(position)}",
                f"The slot has confirmed everything before {format_lsn(self._floor)}: the server may have removed it.",
                [f"`oldest`, {describe_position(self.oldest)}"],
            )
        # What is known of the table holds for its current state, wherever reading starts.
        stored = self._stored
        return replace(
            position, log=self._log, watched=stored.watched, begun=stored.begun, first_read=stored.first_read
        )

    def _at_time(self, at_ms: int) -> Position:
        # Commit times are almost, but not exactly, in the order of the log.
        entry = position_history.before(self._entries, at_ms - DISORDER_MS)
        if entry is None or not isinstance(entry.position, LsnPosition):
            first = (
                [f"{format_time(self._entries[0].position.at_ms)}, where the position history begins"]
                if self._entries
                else []
            )
            out_of_reach(
                f"the position of the pipeline at {format_time(at_ms)} is not known",
                "The position history has no earlier entry."
                if self._entries
                else "The position history has no entry yet.",
                [*first, f"`oldest`, {describe_position(self.oldest)}"],
            )
        # Inside a transaction that was published in parts: it was committed later than the requested time.
        at = self.validated(entry.position)
        return at if at.cut is None else replace(at, cut=None, last=None)

    def _at_lsn(self, lsn: int) -> LsnPosition:
        """Returns the position of an LSN, with the time of the last known position before it."""
        known = [entry.position for entry in self._entries if isinstance(entry.position, LsnPosition)]
        before = [position.at_ms for position in (*known, self._stored) if position.lsn <= lsn]
        stored = self._stored
        return LsnPosition(
            self._log,
            lsn,
            max(before, default=0),
            watched=stored.watched,
            history=stored.history,
            begun=stored.begun,
            first_read=stored.first_read,
        )

    def close(self) -> None:
        """Nothing to do: the connections are closed already."""
