"""Turns pgoutput messages into outbox rows and the position behind them. Pure: no IO, no clock.

Only committed transactions arrive, each as Begin, rows, Commit, in commit order. The position moves to a
transaction's `end_lsn` when its Commit is seen; inside a transaction it is the end of the one before plus a Cut that
counts the rows already taken, so that a very large transaction can be published in pieces and resumed by ordinal.
Row LSNs are never compared: many rows share one.
"""

from __future__ import annotations

from dataclasses import replace

from tailrace.errors import ProtocolError, PublicationBroken, UnexpectedChange
from tailrace.event import Column, Columns, Row
from tailrace.lsn import format_lsn
from tailrace.position import Cut, Position
from tailrace.sources.postgres.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Relation,
    Truncate,
    Update,
    decode,
)
from tailrace.sources.postgres.wire import unix_ms


class Transactions:
    """Follows the stream from `start`; `feed` one message after another, take `rows` and `position` in between."""

    def __init__(self, start: Position, *, schema: str, table: str, halt_on_change: bool) -> None:
        self.rows: list[Row] = []
        self.relations_changed = False
        """A Relation message came for the outbox: its columns or its publication may have changed."""
        self._start = start
        self._lsn = start.lsn
        self._at_ms = start.at_ms
        self._name = (schema, table)
        self._halt_on_change = halt_on_change
        self._outbox: dict[int, Columns] = {}
        self._skip = start.cut
        # Of the transaction that is under way:
        self._commit_lsn = 0
        self._commit_ms = 0
        self._place = ""
        self._seen = 0
        self._to_skip = 0

    @property
    def open(self) -> bool:
        """True between a Begin and its Commit."""
        return self._commit_lsn != 0

    @property
    def position(self) -> Position:
        """Where reading would resume if all rows taken so far were published."""
        cut = self._skip
        if self._commit_lsn and self._seen > self._to_skip:
            cut = Cut(self._commit_lsn, self._seen)
        return replace(self._start, lsn=self._lsn, at_ms=self._at_ms, cut=cut, table_read=None, creating=False)

    def feed(self, frame: bytes, at: int) -> None:
        """Takes the message that fills `frame` from `at` on; rows of the outbox are appended to `rows`."""
        message = decode(frame, at)
        if type(message) is Insert:
            columns = self._outbox.get(message.relation_id)
            if columns is not None:
                self._seen += 1
                if self._seen > self._to_skip:
                    # Inserts carry no UNCHANGED_TOAST: there is no older version of the row.
                    values: tuple[bytes | None, ...] = message.row  # type: ignore[assignment]
                    self.rows.append(Row(columns, values, f"{self._place}{self._seen}", self._commit_ms))
        elif type(message) is Begin:
            self._begin(message)
        elif type(message) is Commit:
            self._commit(message)
        elif type(message) is Relation:
            self._relation(message)
        elif type(message) in (Update, Delete, Truncate):
            self._change(message)  # type: ignore[arg-type]
        elif type(message) is LogicalMessage:
            # Survives a rollback when not transactional, so it is never a business event.
            pass

    def idle(self, wal_end: int, at_ms: int) -> bool:
        """Everything up to `wal_end` has been sent; returns whether that moved the position.

        Not inside a transaction, and not before the rest of a cut transaction has come again: its ordinals are
        still to be skipped, and the position must keep saying so.
        """
        if self.open or self._skip is not None or wal_end <= self._lsn:
            return False
        self._lsn = wal_end
        self._at_ms = at_ms
        return True

    def _begin(self, begin: Begin) -> None:
        if self._commit_lsn:
            raise self._disorder("a transaction begins inside another")
        self._commit_lsn = begin.final_lsn
        self._commit_ms = unix_ms(begin.commit_time)
        self._place = f"{format_lsn(begin.final_lsn)}:"
        self._seen = 0
        self._to_skip = 0
        if self._skip is not None:
            if begin.final_lsn > self._skip.commit_lsn:
                raise self._disorder(
                    f"the transaction committed at {format_lsn(self._skip.commit_lsn)}, of which "
                    f"{self._skip.rows} rows are published, did not come again"
                )
            if begin.final_lsn == self._skip.commit_lsn:
                self._to_skip = self._skip.rows

    def _commit(self, commit: Commit) -> None:
        if commit.commit_lsn != self._commit_lsn:
            raise self._disorder("a commit does not belong to the transaction that is under way")
        if self._to_skip > self._seen:
            raise self._disorder(f"{self._to_skip} rows were published of a transaction that has {self._seen}")
        if self._to_skip:
            self._skip = None
        self._commit_lsn = 0
        self._seen = 0
        self._to_skip = 0
        self._lsn = max(self._lsn, commit.end_lsn)
        self._at_ms = unix_ms(commit.commit_time)

    def _relation(self, relation: Relation) -> None:
        if (relation.namespace, relation.name) == self._name:
            self._outbox[relation.relation_id] = tuple(
                Column(column.name, column.type_oid) for column in relation.columns
            )
            self.relations_changed = True
        elif relation.relation_id in self._outbox:
            # Even if it has its old name again by now, rows under the other name would have passed unseen.
            raise PublicationBroken(
                f"the outbox table was renamed to {relation.namespace}.{relation.name} while it was read",
                why="Rows written under the other name are not recognised as this outbox's.",
                remedy="Name the table in source.table as it is called now, then start once with --adopt.",
            )

    def _change(self, change: Update | Delete | Truncate) -> None:
        touched = change.relation_ids if isinstance(change, Truncate) else (change.relation_id,)
        if self._halt_on_change and any(relation in self._outbox for relation in touched):
            kind = type(change).__name__.upper()
            raise UnexpectedChange(
                f"the outbox saw {'an' if kind == 'UPDATE' else 'a'} {kind} at {self._place}",
                why="source.on_change is `halt`, and the publication publishes more than inserts.",
                remedy="Publish inserts only (ALTER PUBLICATION … SET (publish = 'insert')), or set on_change: ignore.",
            )

    def _disorder(self, what: str) -> ProtocolError:
        return ProtocolError(
            f"near {format_lsn(self._lsn)}: {what}",
            why="The slot does not continue where the stored position ends.",
            remedy="Nothing was skipped. Start again; if it comes back, keep the slot and report it with this text.",
        )
