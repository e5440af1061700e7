"""Turns pgoutput messages into outbox rows and positions.

The server sends committed transactions in commit order, each as Begin, rows, Commit. At a Commit the position moves to
the transaction's `end_lsn`. Inside a transaction it is the end of the previous one plus a `Cut` with the number of rows
taken, so a very large transaction can be published in pieces and resumed by ordinal. LSNs of rows are never compared:
many rows share one.

A stream begins with the last transaction that was read before, unless the slot is confirmed beyond it. It must be the
same transaction, otherwise the log is another one (`LogDiverged`); its rows are skipped.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from tailrace.errors import (
    LogDiverged,
    ProtocolError,
    PublicationBroken,
    SourceError,
    TableRewritten,
    UndecodableTransaction,
    UnexpectedChange,
)
from tailrace.event import Column, Columns, Row
from tailrace.positions.postgres import Cut, LastTransaction, LsnPosition, format_lsn
from tailrace.sources.postgres.encoding import ServerText
from tailrace.sources.postgres.pgoutput import (
    INSERT,
    Begin,
    Commit,
    Delete,
    LogicalMessage,
    PgTuple,
    Relation,
    Truncate,
    Update,
    decode,
    decode_insert,
)
from tailrace.sources.postgres.replication_protocol import unix_ms

DELETES_KEPT = 10_000
"""Deleted rows that are remembered per transaction. A move between partitions inserts the row right after deleting it;
more are kept for services that delete many rows and insert them again in one transaction.
"""

ALL_ROWS = 1 << 62
"""More rows than a transaction can have."""
_new_row = tuple.__new__
"""Builds a Row without the constructor's argument handling: this runs once per row."""

_is_server_failure = re.compile(r"\[5\w{4}\]$").search
"""Matches an SQLSTATE at the end of an error text: the server lacks memory, disk space or a file, or shuts down."""


class Transactions:
    """Follows the stream from `start`: call `feed` for each message, and take `rows` and `position` in between."""

    def __init__(
        self,
        start: LsnPosition,
        *,
        schema: str,
        table: str,
        halt_on_change: bool,
        relation_id: int = 0,
        text: ServerText | None = None,
        moved_by: str | None = None,
        adopted: bool = False,
    ) -> None:
        """The outbox is recognised by its name and by `relation_id`, which a rename does not change.

        `text` converts values that the server does not convert. `moved_by` is the id column if rows may move between
        partitions: then deletes are sent, too, and inserting a row that the same transaction has deleted is a move, not
        an event. `adopted`: the log is accepted even if it lacks the transaction that was published in part.
        """
        self._adopted = adopted
        self._text = text
        self.rows: list[Row] = []
        self.relations_changed = False
        """A Relation message arrived: a column or the publication may have changed."""
        self.columns_changed = False
        """The columns of the outbox have changed, and `rows` has rows with the old columns."""
        self.watched = start.watched
        """See LsnPosition.watched."""
        self._start = start
        self._lsn = start.lsn
        self._at_ms = start.at_ms
        self._name = (schema, table)
        self._relation_id = relation_id
        self._halt_on_change = halt_on_change
        self._outbox: dict[int, Columns] = {}
        self._skip = start.cut
        self._moved_by = moved_by
        self._moves_before = start.moves_before
        self._id_at: dict[int, int] = {}
        self._begun: Begin | None = None
        self._committed: Begin | None = None
        self._expected: list[LastTransaction] = []
        self.arrived = start.last is None
        """The stream has reached the start position: the log is known to be the one that was read."""
        # State of the current transaction:
        self._deleted: OrderedDict[bytes, None] = OrderedDict()
        self._commit_lsn = 0
        self._commit_ms = 0
        self._xid = 0
        self._position_prefix = ""
        self._seen = 0
        self._to_skip = 0

    def expect(self, transactions: Iterable[LastTransaction]) -> None:
        """Sets the transactions that must arrive; to be called before the first `feed`."""
        self._expected = sorted(transactions, key=lambda each: each.commit_lsn)

    @property
    def open(self) -> bool:
        """True between a Begin and its Commit."""
        return self._commit_lsn != 0

    @property
    def position(self) -> LsnPosition:
        """The position behind all rows taken so far."""
        cut, last = self._skip, self._committed
        if self._commit_lsn and self._seen > self._to_skip:
            cut, last = Cut(self._commit_lsn, self._seen), self._begun
        return replace(
            self._start,
            lsn=self._lsn,
            at_ms=self._at_ms,
            cut=cut,
            table_read=None,
            creating=False,
            watched=self.watched,
            moves_before=self._moves_before if self._moves_before > self._lsn else 0,
            last=self._start.last if last is None else _known(last),
        )

    def feed(self, frame: bytes, at: int) -> None:
        """Handles the message in `frame` from offset `at`; appends rows of the outbox to `rows`."""
        if len(frame) > at and frame[at] == INSERT:
            relation_id, values = decode_insert(frame, at)
            columns = self._outbox.get(relation_id)
            if columns is not None:
                if self._deleted and self._is_move(relation_id, values):
                    return
                self._seen = seen = self._seen + 1
                if seen > self._to_skip:
                    if self._text is not None:
                        columns, values = self._text.row(columns, values)  # type: ignore[arg-type]
                    # Inserts have no UNCHANGED_TOAST: there is no older version of the row.
                    self.rows.append(
                        _new_row(Row, (columns, values, f"{self._position_prefix}{seen}", self._commit_ms))
                    )
            return
        message = decode(frame, at)
        if type(message) is Begin:
            self._begin(message)
        elif type(message) is Commit:
            self._commit(message)
        elif type(message) is Relation:
            self._relation(message)
        elif type(message) in (Update, Delete, Truncate):
            self._change(message)  # type: ignore[arg-type]
        elif type(message) is LogicalMessage:
            # Not an event: a non-transactional message survives a rollback.
            pass

    def named(self, error: SourceError) -> SourceError:
        """Returns UndecodableTransaction for a server error inside a transaction; other errors unchanged."""
        if type(error) is not SourceError or not self.open:
            return error
        if _is_server_failure(error.what) and not error.what.endswith("[54000]"):
            return error
        return UndecodableTransaction(
            error.what, xid=self._xid, commit_lsn=self._commit_lsn, commit_ms=self._commit_ms, rows=self._seen
        )

    def idle(self, wal_end: int, at_ms: int) -> bool:
        """Handles a keepalive: everything up to `wal_end` is sent. Returns whether that moved the position.

        The position does not move inside a transaction, nor before the rest of a cut transaction has arrived, whose
        published rows must still be skipped. It does not move behind rows that are not taken yet either: a position
        without rows is stored only after the publication is verified, a position behind rows without that.
        """
        if self.open:
            return False
        if self._expected and wal_end > self._expected[0].commit_lsn:
            raise self._diverged(self._expected[0], "it is missing")
        if wal_end >= self._start.lsn:
            self.arrived = True
        if self._adopted and self._skip is not None and wal_end > self._skip.commit_lsn:
            self._skip = None
        if self._skip is not None or self.rows or wal_end <= self._lsn:
            return False
        self._lsn = wal_end
        self._at_ms = at_ms
        return True

    def _begin(self, begin: Begin) -> None:
        if self._commit_lsn:
            raise self._disorder("a transaction begins inside another one")
        lsn, commit_time, self._xid = begin
        self._commit_lsn = lsn
        self._begun = begin
        self._commit_ms = unix_ms(commit_time)
        self._position_prefix = (
            f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}:"  # format_lsn without its check: runs once per transaction
        )
        self._seen = self._to_skip = 0
        self._deleted.clear()
        if self._expected or not self.arrived:
            self._match_known(begin)
        if self._skip is not None:
            if begin.final_lsn > self._skip.commit_lsn and self._adopted:
                self._skip = None
            elif begin.final_lsn > self._skip.commit_lsn:
                raise self._disorder(
                    f"the transaction committed at {format_lsn(self._skip.commit_lsn)}, of which "
                    f"{self._skip.rows} rows are published, is missing"
                )
            elif begin.final_lsn == self._skip.commit_lsn:
                self._to_skip = self._skip.rows

    def _match_known(self, begin: Begin) -> None:
        """Checks that transactions before the stored position are the ones that were read."""
        found = _known(begin)
        if self._expected and found.commit_lsn >= self._expected[0].commit_lsn:
            known = self._expected.pop(0)
            if found != known:
                raise self._diverged(known, f"transaction {begin.xid} is there instead")
        if found.commit_lsn >= self._start.lsn:
            self.arrived = True
        else:
            # Its rows are all published if it is the known one; another one must have no rows: see `_commit`.
            self._to_skip = ALL_ROWS

    def _commit(self, commit: Commit) -> None:
        _, commit_lsn, end_lsn, commit_time = commit
        if commit_lsn != self._commit_lsn:
            raise self._disorder("a commit does not belong to the current transaction")
        if self._to_skip == ALL_ROWS:
            self._require_known()
        elif self._to_skip > self._seen:
            raise self._disorder(f"{self._to_skip} rows were published of a transaction that has {self._seen}")
        elif self._to_skip:
            self._skip = None
        self._committed = self._begun
        self._commit_lsn = self._seen = self._to_skip = 0
        if end_lsn > self._lsn:
            self._lsn = end_lsn
            self._at_ms = unix_ms(commit_time)

    def _require_known(self) -> None:
        last, begun = self._start.last, self._begun
        if self._seen and last is not None and begun is not None and _known(begun) != last:
            raise self._diverged(last, f"it is followed by transaction {begun.xid}, of which nothing was read")

    def _relation(self, relation: Relation) -> None:
        self.relations_changed = True
        known = self._outbox.get(relation.relation_id)
        named = (relation.namespace, relation.name)
        if self._text is not None:
            named = (self._text.name(relation.namespace), self._text.name(relation.name))
        if relation.relation_id == self._relation_id or named == self._name:
            name = self._text.name if self._text is not None else str
            columns = tuple(Column(name(column.name), column.type_oid) for column in relation.columns)
            if columns != known:
                self._outbox[relation.relation_id] = columns
                if self._moved_by is not None:
                    names = [column.name for column in columns]
                    self._id_at[relation.relation_id] = names.index(self._moved_by) if self._moved_by in names else -1
                self.columns_changed = bool(self.rows)
        elif known is not None:
            # The table was renamed and written to since: those rows would be missed.
            raise PublicationBroken(
                f"the outbox table was renamed to {relation.namespace}.{relation.name} while it was being read",
                why="Rows written under the new name are not recognised as rows of this outbox.",
                remedy="Set source.table to the new name. `tailrace recover plan FILE` then finds what was missed, "
                "`recover apply` publishes it; one start with --adopt continues without it.",
            )

    def _delete(self, delete: Delete) -> None:
        """Remembers a deleted row: the same transaction may insert it into another partition."""
        at = self._id_at[delete.relation_id]
        row = delete.key or delete.old or ()
        value = row[at] if 0 <= at < len(row) else None
        if not isinstance(value, bytes):
            raise PublicationBroken(
                f"a row was deleted from the outbox at {self._position_prefix}, and its {self._moved_by} was not sent",
                why="Rows can move between partitions, which Postgres logs as a DELETE and an INSERT; without the id "
                "the insert looks like a new row.",
                remedy=f"The replica identity of every partition must contain {self._moved_by}: the primary key, or "
                "ALTER TABLE … REPLICA IDENTITY FULL. To get past this transaction: `tailrace recover plan FILE`.",
            )
        self._deleted[value] = None
        self._deleted.move_to_end(value)
        if len(self._deleted) > DELETES_KEPT:
            self._deleted.popitem(last=False)

    def _is_move(self, relation_id: int, values: PgTuple) -> bool:
        at = self._id_at[relation_id]
        value = values[at] if 0 <= at < len(values) else None
        if not isinstance(value, bytes) or value not in self._deleted:
            return False
        del self._deleted[value]
        if self._commit_lsn < self._moves_before:
            raise moved_too_early()
        return True

    def _change(self, change: Update | Delete | Truncate) -> None:
        if isinstance(change, Delete) and self._moved_by is not None:
            if change.relation_id in self._outbox:
                self._delete(change)
            return
        touched = change.relation_ids if isinstance(change, Truncate) else (change.relation_id,)
        if self._halt_on_change and self._to_skip < ALL_ROWS and any(relation in self._outbox for relation in touched):
            kind = type(change).__name__.upper()
            raise UnexpectedChange(
                f"the outbox had {'an' if kind == 'UPDATE' else 'a'} {kind} at {self._position_prefix}",
                why="source.on_change is `halt`, and the publication publishes more than inserts.",
                remedy="Publish inserts only (ALTER PUBLICATION … SET (publish = 'insert')), or set on_change: ignore.",
            )

    def _diverged(self, known: LastTransaction, found: str) -> LogDiverged:
        what = f"transaction {known.xid}, committed at {format_lsn(known.commit_lsn)}" if known.xid else "none"
        return LogDiverged(
            f"the server's log is not the one that was read: the last transaction before {self._start} was {what}, "
            f"and {found}",
            why="The database was restored from a copy of its files or a snapshot of its machine, and written to "
            "since; or the address leads to such a copy.",
            remedy="`tailrace recover plan FILE` compares the outbox table with the topics, `recover apply` publishes "
            "what is missing. If it is the wrong server, correct source.postgres. To continue behind the stored "
            "position without what is missing, start once with --adopt.",
        )

    def _disorder(self, what: str) -> ProtocolError:
        return ProtocolError(
            f"near {format_lsn(self._lsn)}: {what}",
            why="The slot does not continue where the stored position ends.",
            remedy="Nothing was skipped. Start again; if it fails again, keep the slot and report this text.",
        )


def moved_too_early() -> TableRewritten:
    """Returns the error for rows that moved to other partitions before a first read was resumed."""
    return TableRewritten(
        "rows moved to other partitions before the first read was complete",
        why="A moved row has a new transaction id. A resumed read leaves it to the stream, which sends it as moved: it "
        "is unknown whether it was published before.",
        remedy="`tailrace recover plan FILE` compares the table with the topics, `recover apply` publishes the rest of "
        "it. To continue without that, start once with --adopt.",
    )


def _known(begin: Begin) -> LastTransaction:
    return LastTransaction(begin.final_lsn, begin.xid, begin.commit_time)
