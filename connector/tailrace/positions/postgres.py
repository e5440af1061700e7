"""Positions in the log of Postgres: an LSN, and what else is needed to resume there.

The LSN is the end of the last complete transaction. Inside a very large transaction the position also has the number of
its published rows (`Cut`); during the first read of the table it has the progress of that read (`TableRead`). It names
the log it belongs to; a position of another log is refused, never compared.

In code an LSN is an int (a byte offset of 64 bits). The text form of Postgres, such as `16/B374D848`, is used only in
SQL, settings and logs. It must never be compared as text: `9/0` sorts after `10/0` there.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tailrace.positions.first_read import FirstRead
from tailrace.positions.recovery_mark import Recovery

SOURCE = "postgres"
MAX_LSN: Final = 0xFFFF_FFFF_FFFF_FFFF

# The same as pg_lsn accepts: leading zeros are valid; signs, spaces and underscores, which int(..., 16) accepts, are
# not.
_TEXT: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def parse_lsn(text: str) -> int:
    """Parses the text form of Postgres; raises ValueError for anything else."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"not an LSN: {text!r} (expected two hexadecimal halves such as 16/B374D848)")
    high, low = match.groups()
    return int(high, 16) << 32 | int(low, 16)


def format_lsn(lsn: int) -> str:
    """Returns the text form of Postgres; raises ValueError if the number does not fit 64 bits unsigned."""
    if not 0 <= lsn <= MAX_LSN:
        raise ValueError(f"not an LSN: {lsn} (expected 0 to 2**64 - 1)")
    return f"{lsn >> 32:X}/{lsn & 0xFFFF_FFFF:X}"


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The log that a position belongs to, and the slot and publication it was read through.

    `publication` is a fingerprint of the publication's catalog rows. It changes when the publication is re-created, or
    the table is removed from it and added again: rows may have been missed in between.
    """

    system_id: str
    timeline: int
    database: str
    slot: str
    table: str
    publication: str


@dataclass(frozen=True, slots=True)
class Cut:
    """A transaction that is published only in part: the LSN of its commit record, and its published rows."""

    commit_lsn: int
    rows: int


@dataclass(frozen=True, slots=True)
class LastTransaction:
    """The last transaction that was read before a position; a later start must find it again in the log.

    A database that was restored from a copy of its files has the same system id and timeline, and new transactions at
    LSNs that were read before. `xid` 0: no transaction was read since `commit_lsn`, where the slot begins or behind a
    skipped transaction.
    """

    commit_lsn: int
    xid: int = 0
    commit_micros: int = 0
    """The commit time in Postgres microseconds."""


@dataclass(frozen=True, slots=True)
class TableRead:
    """Progress of reading the rows that were in the table before the slot began.

    `snapshot` is `pg_current_snapshot()` under the slot's exported snapshot: a later session uses it to separate the
    rows before it from the rows after it. `after` is the sort key of the last published row, `rows` the number of
    published rows. `where` is the predicate for the rows (`source.start_where`); empty: all rows.
    """

    snapshot: str
    after: list[str | None] | None = None
    rows: int = 0
    where: str = ""


@dataclass(frozen=True, slots=True)
class LsnPosition:
    """A position in the log. `at_ms` is the source's clock there, for the lag in seconds."""

    log: LogIdentity
    lsn: int
    at_ms: int
    cut: Cut | None = None
    table_read: TableRead | None = None
    creating: bool = False
    """The slot is about to be created: nothing was published from it, so it may be re-created."""
    recovery: Recovery | None = None
    """Set while a recovery reads the table; it leaves out what was published before."""
    moves_before: int = 0
    """The first read was resumed at this LSN: it is unknown whether rows were read that moved to another partition
    before it.
    """
    watched: int = 0
    """No row entered the table without the publication before this transaction (64 bits); 0 if nothing is known."""
    last: LastTransaction | None = None
    """Inside a transaction, that transaction. None: unknown, as in positions of older versions."""
    history: str = ""
    """Changes when a restore on the same timeline is accepted: LSNs before and after it are of different logs."""
    begun: str = ""
    """With `start: now`, the snapshot of the first start: its rows are not published. Empty: none, or unknown."""
    first_read: FirstRead | None = None
    """With `source.start_where`, which rows the first read has left out."""

    def __str__(self) -> str:
        if self.creating:
            return "creating the slot"
        if self.table_read:
            return f"{format_lsn(self.lsn)} (reading the table)"
        if self.cut:
            return f"{format_lsn(self.lsn)}+{self.cut.rows} rows of {format_lsn(self.cut.commit_lsn)}"
        return format_lsn(self.lsn)

    @property
    def progress(self) -> tuple[int, int, int]:
        """The sort key of positions of one log; the table comes before the stream.

        Inside a transaction its commit LSN counts: the LSN before it differs between readers.
        """
        stage = 0 if self.creating else 1 if self.table_read else 2
        return (stage, self.cut.commit_lsn, self.cut.rows) if self.cut else (stage, self.lsn, 0)

    def is_alike(self, other: object) -> bool:
        """Whether both are positions of the same log, read through any publication."""
        if not isinstance(other, LsnPosition) or self.history != other.history:
            return False
        return self.log == replace(other.log, publication=self.log.publication)

    @property
    def resume_lsn(self) -> int:
        """The LSN to stream from: the server sends the last transaction again, so that it can be recognised."""
        return self.lsn if self.last is None else self.last.commit_lsn

    def covers(self, row_position: str) -> bool:
        """Whether the row with this position text lies at or before this position, in the same log.

        Rows read from the table (`<LSN>:t<number>`) lie before all rows of the stream.
        """
        commit, _, number = row_position.partition(":")
        lsn = parse_lsn(commit)
        if number.startswith("t"):
            read = self.table_read
            if lsn != self.lsn or read is None:
                # Covered if the slot began no later and its table is completely read.
                return lsn <= self.lsn and not (self.creating or read)
            return int(number[1:]) <= read.rows
        if self.cut is not None and lsn == self.cut.commit_lsn:
            return int(number) <= self.cut.rows
        return lsn < self.lsn and not (self.creating or self.table_read)

    def to_json(self) -> dict[str, Any]:
        """Returns the stored form, with LSNs as text, so that people can read the offsets topic."""
        stored: dict[str, Any] = {
            "source": SOURCE,
            "lsn": format_lsn(self.lsn),
            "at_ms": self.at_ms,
            "log": asdict(self.log),
        }
        if self.cut:
            stored["cut"] = {"commit_lsn": format_lsn(self.cut.commit_lsn), "rows": self.cut.rows}
        if self.table_read:
            stored["table_read"] = {
                name: value for name, value in asdict(self.table_read).items() if name != "where" or value
            }
        if self.creating:
            stored["creating"] = True
        if self.recovery:
            stored["recovery"] = asdict(self.recovery)
        if self.moves_before:
            stored["moves_before"] = format_lsn(self.moves_before)
        if self.watched:
            stored["watched"] = self.watched
        if self.last:
            stored["last"] = {**asdict(self.last), "commit_lsn": format_lsn(self.last.commit_lsn)}
        if self.history:
            stored["history"] = self.history
        if self.begun:
            stored["begun"] = self.begun
        if self.first_read:
            stored["first_read"] = asdict(self.first_read)
        return stored

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> LsnPosition:
        """Parses the stored form; raises ValueError, KeyError or TypeError if it is invalid."""
        cut, table_read, recovery = stored.get("cut"), stored.get("table_read"), stored.get("recovery")
        last, first_read = stored.get("last"), stored.get("first_read")
        return cls(
            log=LogIdentity(**stored["log"]),
            lsn=parse_lsn(stored["lsn"]),
            at_ms=int(stored["at_ms"]),
            cut=Cut(parse_lsn(cut["commit_lsn"]), int(cut["rows"])) if cut else None,
            table_read=TableRead(**table_read) if table_read else None,
            creating=bool(stored.get("creating", False)),
            recovery=Recovery(**recovery) if recovery else None,
            moves_before=parse_lsn(stored.get("moves_before", "0/0")),
            watched=int(stored.get("watched", 0)),
            last=LastTransaction(parse_lsn(last["commit_lsn"]), int(last["xid"]), int(last["commit_micros"]))
            if last
            else None,
            history=str(stored.get("history", "")),
            begun=str(stored.get("begun", "")),
            first_read=FirstRead(**first_read) if first_read else None,
        )
