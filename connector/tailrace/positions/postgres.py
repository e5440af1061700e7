"""A place in Postgres's log: an LSN, and what more it takes to go on there.

It is the end of the last complete transaction. Inside a very large transaction it also says how many of
its rows are already published (a `Cut`), and while the first rows are read from the table itself it says how far
that reading came (a `TableRead`). It is tagged with the log it belongs to: a position of another log is refused,
never compared.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tailrace.positions.recovery_mark import Recovery

SOURCE = "postgres"
MAX_LSN: Final = 0xFFFF_FFFF_FFFF_FFFF

# What the server's own pg_lsn input accepts: leading zeros are fine; signs, spaces and underscores, which
# int(..., 16) would let through, are not.
_TEXT: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def parse_lsn(text: str) -> int:
    """Read the text form of Postgres; ValueError on anything else."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"not an LSN: {text!r} (expected two hexadecimal halves such as 16/B374D848)")
    high, low = match.groups()
    return int(high, 16) << 32 | int(low, 16)


def format_lsn(lsn: int) -> str:
    """Write the text form of Postgres; ValueError when the number does not fit 64 bits unsigned."""
    if not 0 <= lsn <= MAX_LSN:
        raise ValueError(f"not an LSN: {lsn} (expected 0 to 2**64 - 1)")
    return f"{lsn >> 32:X}/{lsn & 0xFFFF_FFFF:X}"


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Which log a position belongs to, and through what it was read.

    `publication` is a fingerprint of the publication's catalogue rows: dropping and creating it anew, or taking
    the table out and putting it back, changes the fingerprint, because rows may have been passed over meanwhile.
    """

    system_id: str
    timeline: int
    database: str
    slot: str
    table: str
    publication: str


@dataclass(frozen=True, slots=True)
class Cut:
    """A transaction published only in part: the LSN of its commit record, and how many rows are out."""

    commit_lsn: int
    rows: int


@dataclass(frozen=True, slots=True)
class LastTransaction:
    """The last transaction that was read before a position: a later start finds it again, or it is another history.

    A database that was put back from a copy of its files has the same system id and timeline, and new transactions at
    LSNs that were read before. `xid` 0: none was read from `commit_lsn` on, where the slot begins, or behind a
    transaction that was skipped.
    """

    commit_lsn: int
    xid: int = 0
    commit_micros: int = 0
    """The time of the commit, as Postgres counts it."""


@dataclass(frozen=True, slots=True)
class TableRead:
    """Progress of reading the rows that were in the table before the slot began.

    `snapshot` is the text of `pg_current_snapshot()` under the slot's exported snapshot: with it a later session
    can still tell the rows before it from the rows after it. `after` is the sort key of the last published row, `rows`
    how many are published.
    """

    snapshot: str
    after: list[str | None] | None = None
    rows: int = 0


@dataclass(frozen=True, slots=True)
class LsnPosition:
    """Where the pipeline stands. `at_ms` is the source's clock there, for lag in seconds."""

    log: LogIdentity
    lsn: int
    at_ms: int
    cut: Cut | None = None
    table_read: TableRead | None = None
    creating: bool = False
    """The slot is about to be created: nothing has been published from it, so it may be created anew."""
    recovery: Recovery | None = None
    """The table is read to close a gap: what was published before is left out."""
    moves_before: int = 0
    """The first read was resumed at this LSN: whether a row was read that moved to another partition before is not
    known.
    """
    watched: int = 0
    """What happened to the table before this transaction (64 bits) is known to have let no row in past the publication;
    0 if nothing is known.
    """
    last: LastTransaction | None = None
    """Inside a transaction it is that one. None: not known, as in positions of older versions."""
    history: str = ""
    """Changes when the database was set back on its timeline and that was accepted: LSNs before and after it are of
    different logs.
    """
    begun: str = ""
    """The snapshot in which the first start found the table, with `start: now`: the rows that it shows were there
    before, and are not published. Empty: there are none, or it is not known.
    """

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
        """Sorts positions of one log by how far they are; the table comes before the stream.

        Inside a transaction its own place counts: what a reader saw last before it differs from reader to reader.
        """
        stage = 0 if self.creating else 1 if self.table_read else 2
        return (stage, self.cut.commit_lsn, self.cut.rows) if self.cut else (stage, self.lsn, 0)

    def is_alike(self, other: object) -> bool:
        """Whether both are places in one log; through which publication it was read does not matter."""
        if not isinstance(other, LsnPosition) or self.history != other.history:
            return False
        return self.log == replace(other.log, publication=self.log.publication)

    @property
    def resume_lsn(self) -> int:
        """Where to ask the server for the log from: it sends the last transaction once more, to be recognised."""
        return self.lsn if self.last is None else self.last.commit_lsn

    def covers(self, place: str) -> bool:
        """Whether the row at `place` lies at or before this position, of the same log.

        Rows that were in the table before (`<LSN>:t<number>`) lie before everything that the stream brings.
        """
        commit, _, number = place.partition(":")
        lsn = parse_lsn(commit)
        if number.startswith("t"):
            read = self.table_read
            if lsn != self.lsn or read is None:
                # Of a slot that began no later, and whose table was read before its stream.
                return lsn <= self.lsn and not (self.creating or read)
            return int(number[1:]) <= read.rows
        if self.cut is not None and lsn == self.cut.commit_lsn:
            return int(number) <= self.cut.rows
        return lsn < self.lsn and not (self.creating or self.table_read)

    def to_json(self) -> dict[str, Any]:
        """The stored form: LSNs as Postgres writes them, so that a person can read the offsets topic."""
        stored: dict[str, Any] = {
            "source": SOURCE,
            "lsn": format_lsn(self.lsn),
            "at_ms": self.at_ms,
            "log": asdict(self.log),
        }
        if self.cut:
            stored["cut"] = {"commit_lsn": format_lsn(self.cut.commit_lsn), "rows": self.cut.rows}
        if self.table_read:
            stored["table_read"] = asdict(self.table_read)
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
        return stored

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> LsnPosition:
        """Reads the stored form; ValueError, KeyError or TypeError if it is not one."""
        cut, table_read, recovery = stored.get("cut"), stored.get("table_read"), stored.get("recovery")
        last = stored.get("last")
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
        )
