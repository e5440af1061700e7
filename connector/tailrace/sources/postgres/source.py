"""The Postgres source: reads the rows already in the table, then streams the log.

Each chunk of rows comes with the position behind it. `confirm` reports a position to the server only after Kafka has
stored it (I6). The server receives a status update within every third of `link_timeout` or `wal_sender_timeout`, also
while the pipeline is paused; otherwise it would end the session.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from tailrace import failpoints
from tailrace.errors import PublicationBroken, SlotAhead, SourceError, SourceUnavailable
from tailrace.event import Chunk
from tailrace.positions.base import Position
from tailrace.positions.postgres import LsnPosition, format_lsn
from tailrace.sources.bounded import read_page
from tailrace.sources.postgres import catalog
from tailrace.sources.postgres.feedback import Feedback
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.replay_window import WindowTracker
from tailrace.sources.postgres.replication_protocol import (
    KEEPALIVE,
    XLOG_DATA,
    XLOG_DATA_BODY,
    decode_frame,
    decode_keepalive,
    unix_ms,
)
from tailrace.sources.postgres.resume_check import ResumeAction, expected_transactions
from tailrace.sources.postgres.session import PostgresSession
from tailrace.sources.postgres.snapshot import TableReader
from tailrace.sources.postgres.transactions import Transactions
from tailrace.sql_names import quote, split_table
from tailrace.wakeup import Wakeup

TAIL_SECONDS = 0.01
"""How long to wait for the rest of a transaction of which rows have arrived."""
CLOSE_SECONDS = 0.5
"""How long the server may take to end the stream on close; it sends the rest again later."""


class PostgresSource(PostgresSession):
    """Implements `RowSource`; owned by one thread."""

    def __init__(
        self,
        options: PostgresOptions,
        *,
        wakeup: Wakeup,
        warn: Callable[[str], None] = lambda _: None,
        until: Callable[[], Position | None] = lambda: None,
    ) -> None:
        """`wakeup` ends a waiting `read` early; `warn` is called when the replay window is given up; `until` see
        PostgresSession.
        """
        super().__init__(options, until=until)
        self._warn = warn
        self._wakeup = wakeup
        self._table: TableReader | None = None
        self._urgent = False
        self._streaming = False
        self._undecodable: SourceError | None = None
        self._unconfirmed: LsnPosition | None = None
        self._last_heard = self._last_sent = time.monotonic()

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        """Starts at `stored`, or creates the slot on a first start; `store` writes a position durably at once."""
        resumed = self._check(stored)
        assert resumed is not None  # noqa: S101 - only in a dry run
        found, slot, decision = resumed
        options, before = self._options, stored
        if decision.position is None:
            start, exported = self._create_slot(found, store, slot)
        else:
            start, exported = self._require_complete_table(decision.position), None
        if start.table_read is not None:
            start = self._open_table(start, exported)
        if decision.step is not ResumeAction.STREAM or start != before:
            store(start)
        window: WindowTracker | None = None
        kept = slot.confirmed_lsn if slot is not None and decision.step is ResumeAction.STREAM else start.lsn
        if options.replay_window:
            window = WindowTracker(options.replay_window, kept, start, options.past)
        self._feedback = Feedback(options.slot, start, confirmed=kept, window=window, warn=self._warn)
        if window is not None:
            self._feedback.find_disk(self._control)
        self._begin(start)
        return start

    def read(self, limit: int, limit_bytes: int, wait: float) -> Chunk:
        """Returns about `limit` rows at most; waits at most `wait` seconds for the first of them."""
        if self._table is not None:
            return self._read_table(self._table, limit, limit_bytes)
        if self._undecodable is not None:
            raise self._undecodable
        self._check_link()
        self._probe(self._verify_publication)
        self._partitions.advance(self._feedback.verified)
        transactions = self._transactions
        transactions.watched = self._feedback.watched or transactions.watched
        rows = transactions.rows = []
        taken, more = self._take(limit, limit_bytes)
        if not rows and not more and wait and self._wait(wait):
            taken, more = self._take(limit, limit_bytes)
            self._last_heard = time.monotonic()
        # The rest of a transaction usually follows at once, and a position behind its Commit needs no cut. If it does
        # not, the transaction is large or the link slow, and the pipeline has other work to do.
        tail_ends = time.monotonic() + TAIL_SECONDS
        while rows and not more and transactions.open and (left := tail_ends - time.monotonic()) > 0:
            if not self._wait(left):
                break
            size, more = self._take(limit, limit_bytes - taken)
            taken += size
        if taken:
            self._last_heard = time.monotonic()
        if transactions.relations_changed:
            transactions.relations_changed = False
            self._verify_publication()
        if rows:
            failpoints.reached(failpoints.ROWS_READ)
        position = transactions.position
        self._feedback.received = max(self._feedback.received, position.lsn)
        if self._unconfirmed is not None:
            self._confirm_known()
        return Chunk(rows, position, more, taken if rows else 0, self._urgent)

    def _take(self, limit: int, limit_bytes: int) -> tuple[int, bool]:
        """Decodes the frames that have arrived; returns their bytes, and whether a limit ended it."""
        transactions = self._transactions
        rows, feed, taken = transactions.rows, transactions.feed, 0
        try:
            for frame in self._stream.frames():
                taken += len(frame)
                if frame[0] == XLOG_DATA:
                    feed(frame, XLOG_DATA_BODY)
                elif frame[0] == KEEPALIVE:
                    self._keepalive(frame)
                else:
                    decode_frame(frame)  # raises: there is no third kind
                # One row more than the limit: then the Commit that may stand before it has been read, too.
                if len(rows) > limit or taken >= limit_bytes or transactions.columns_changed:
                    # Rows of the old columns form their own chunk: they are published even if the new columns fail.
                    transactions.columns_changed = False
                    return taken, True
        except SourceError as error:
            named = transactions.named(error)
            if named is error or not rows:
                raise named from None
            # The rows before it are published first; otherwise no start would ever get further than here.
            self._undecodable = named
            return taken, True
        return taken, False

    def settle(self) -> None:
        """Raises if rows may be missing from the stream; called before a position without rows is stored."""
        if self._table is None:
            self._verify_publication()
        self._urgent = False

    def confirm(self, position: Position) -> None:
        """Reports to the server that `position` is stored: it may remove the log before it."""
        if self._table is None and isinstance(position, LsnPosition):
            self._unconfirmed = position
            self._confirm_known()

    def _confirm_known(self) -> None:
        """Confirms once the log is known to be the one that was read; another log would lose events it still has."""
        stored = self._unconfirmed
        if stored is not None and self._transactions.arrived:
            self._unconfirmed = None
            if self._feedback.advance(stored):
                self._send_status()

    def keep_alive(self) -> None:
        """Sends a sign of life. To be called about every second while `read` is not called."""
        self._last_heard = time.monotonic()
        if self._table is not None:
            return
        # While nothing can be published, stored positions are still confirmed if the server is short of space. The
        # publication is not verified here: `read` reports its problems, behind the rows that were read.
        self._probe(lambda: False)
        if time.monotonic() - self._last_sent > self._status_interval:
            self._send_status()

    def passed(self, position: Position) -> str:
        return self._feedback.passed(position.lsn) if isinstance(position, LsnPosition) else ""

    def close(self) -> None:
        if self._streaming:
            # Just closing the socket could overtake the last confirmation: the server handles CopyDone after it.
            self._streaming = False
            self._stream.end_copy(CLOSE_SECONDS)
        super().close()

    def _open_table(self, start: LsnPosition, exported: str | None) -> LsnPosition:
        from tailrace.sources.postgres.inserted_rows import InsertedRows  # which reads the log as this source does

        options = self._options
        self._table = TableReader(
            self._connections.open(),
            options.table,
            order_by=list(options.order_by),
            timestamp=options.timestamp,
            start=start,
            exported=exported,
            whole=not options.adopt,
            moves=self._published.moves and not options.adopt,
            inserted=None if options.adopt else lambda end: InsertedRows(options, start, end),
            steady=options.event_columns.issuperset(options.order_by),
        )
        return self._table.start

    def _read_table(self, table: TableReader, limit: int, limit_bytes: int) -> Chunk:
        page = read_page(table, limit, limit_bytes)
        if page is not None:
            return page
        table.close()
        self._table = None
        self._start_streaming()
        # Urgent: once this position is stored, a restart does not read the table again.
        self._urgent = True
        return Chunk([], self._transactions.position, more=False, urgent=True)

    def _begin(self, start: LsnPosition) -> None:
        self._transactions = self._make_transactions(start)
        if self._table is None:
            self._start_streaming()

    def _make_transactions(self, start: LsnPosition) -> Transactions:
        options = self._options
        if options.messages is not None:
            # Imported here: msgspec takes 2 MB, which a table does not need.
            from tailrace.sources.postgres.messages import MessageTransactions

            return MessageTransactions(
                start,
                options=options.messages,
                warn=self._warn,
                halt_on_change=options.halt_on_change,
                adopted=options.adopt,
            )
        schema, table = split_table(options.table)
        return Transactions(
            start,
            schema=schema,
            table=table,
            halt_on_change=options.halt_on_change,
            relation_id=self._published.relation_id,
            text=self._stream.text,
            moved_by=options.id_column if self._published.moves else None,
            adopted=options.adopt,
        )

    def _start_streaming(self) -> None:
        options = self._options
        start = self._transactions.position
        names = quote(options.publication).replace("'", "''")
        messages = ", messages 'true'" if options.messages is not None else ""
        self._stream.begin_copy(
            f"START_REPLICATION SLOT {quote(options.slot)} LOGICAL {format_lsn(start.resume_lsn)} "
            f"(proto_version '1', publication_names '{names}'{messages})"
        )
        self._streaming = True
        # The slot is ours now. If it was moved since the resume check, the server has silently begun further on.
        slot = catalog.read_slot(self._control, options.slot)
        if slot is not None and slot.confirmed_lsn > start.lsn:
            raise SlotAhead(
                f"the slot {slot.name} was moved to {format_lsn(slot.confirmed_lsn)} while starting at {start}",
                why="Another session advanced it.",
                remedy="Find out who did; the rows in between are in the outbox table: `tailrace recover plan FILE`.",
            )
        # With --adopt the log is accepted as it is: it may lack the position from before a rewind.
        until = None if options.adopt else self.until
        self._transactions.expect(expected_transactions(start, until, slot.confirmed_lsn if slot is not None else 0))
        self._poll = select.poll()
        self._poll.register(self._stream.pgconn.socket, select.POLLIN)
        self._poll.register(self._wakeup, select.POLLIN)
        self._last_heard = self._last_sent = time.monotonic()
        failpoints.reached(failpoints.STREAM_STARTED)

    def _verify_publication(self) -> bool:
        """Raises if rows may be missing from the stream; returns False if that is not known at the moment."""
        found = self._read_published()
        before, now = self._published.fingerprint, found.fingerprint
        if now != before:
            raise PublicationBroken(
                "the publication was changed or re-created, or the table was removed from it and added again",
                why=f"Its catalog rows changed from {before} to {now} while streaming.",
                remedy="Rows committed meanwhile are in the table, not in the stream: `tailrace recover plan FILE` "
                "finds them. To continue without them, start once with --adopt.",
            )
        return self._partitions.verify(self._control, found)

    def _keepalive(self, frame: bytes) -> None:
        keepalive = decode_keepalive(frame)
        self._feedback.note_log_end(keepalive.wal_end)
        self._transactions.idle(keepalive.wal_end, unix_ms(keepalive.send_time))
        if keepalive.reply_requested:
            self._urgent = True
            self._send_status()

    def _probe(self, verify: Callable[[], bool]) -> None:
        if self._feedback.probe(self._control, verify):
            self._send_status()
        self._urgent = self._urgent or self._feedback.is_pressed

    def _check_link(self) -> None:
        now = time.monotonic()
        if now - self._last_heard > self._options.link_timeout:
            raise SourceUnavailable(
                f"Postgres has been silent for {self._options.link_timeout:.0f} s",
                why="The network path is half-open, or the server hangs.",
                remedy="Tailrace reconnects by itself; source.link_timeout sets the limit.",
            )
        if now - self._last_sent > self._status_interval:
            self._send_status(reply=True)

    def _send_status(self, *, reply: bool = False) -> None:
        if self._undecodable is not None:
            return  # the server has ended the stream and no longer listens
        self._stream.send(self._feedback.update(reply=reply))
        self._last_sent = time.monotonic()

    def _wait(self, seconds: float) -> bool:
        """Returns whether something came on the stream within `seconds`; a wakeup ends the wait, too."""
        socket = self._stream.pgconn.socket
        return any(fd == socket for fd, _ in self._poll.poll(seconds * 1000))
