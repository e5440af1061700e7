"""The Postgres source: admission, the rows already in the table, then the stream; one `read` for both.

Positions go out with rows, and only one thing comes back: the position that Kafka has stored, which `confirm` tells
the server. The server never hears of a position that is not stored (I6), and it hears something within every
third of `link_timeout` or `wal_sender_timeout`, also while the pipeline is paused, or it would end the session.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import replace

from tailrace import failpoints
from tailrace.errors import ConfigError, PublicationBroken, SlotAhead, SlotMissing, SourceError, SourceUnavailable
from tailrace.event import Chunk
from tailrace.positions.base import Position, other_kind
from tailrace.positions.postgres import LastTransaction, LogIdentity, LsnPosition, TableRead, format_lsn
from tailrace.positions.recovery_mark import require_complete
from tailrace.sources.bounded import read_page
from tailrace.sources.postgres import catalog as catalogue
from tailrace.sources.postgres import publication
from tailrace.sources.postgres.feedback import Feedback
from tailrace.sources.postgres.options import PgConnections, PostgresOptions
from tailrace.sources.postgres.replay_window import WindowTracker
from tailrace.sources.postgres.replication_protocol import (
    KEEPALIVE,
    XLOG_DATA,
    XLOG_DATA_BODY,
    decode_frame,
    decode_keepalive,
    unix_ms,
)
from tailrace.sources.postgres.resume_check import (
    ResumeAction,
    ResumeDecision,
    ServerIdentity,
    SlotState,
    check_resume,
    expected_transactions,
    require_same_past,
    require_same_server,
)
from tailrace.sources.postgres.snapshot import SORT_TIMEOUT, Snapshot, TableReader
from tailrace.sources.postgres.timelines import follow, require_promoted
from tailrace.sources.postgres.transactions import Transactions
from tailrace.sources.postgres.unpublished_rows import PartitionWatch
from tailrace.sql_names import quote, split_table
from tailrace.wakeup import Wakeup

TAIL_SECONDS = 0.01
"""How long to wait for the rest of a transaction of which rows have come."""
FAREWELL_SECONDS = 0.5
"""How long the server may take to end the stream when we leave; whatever it still sends is its to send again."""


class PostgresSource:
    """Implements `pipeline.Source`; owned by one thread."""

    def __init__(
        self,
        options: PostgresOptions,
        *,
        wake: Wakeup,
        warn: Callable[[str], None] = lambda _: None,
        until: Callable[[], Position | None] = lambda: None,
    ) -> None:
        """`wake` ends a waiting `read` early; `warn` hears of a replay window that is given up. `until` tells, once the
        stored position is known, from where the pipeline was set back.
        """
        self.until: Position | None = None
        """The same, as a place in the log that was opened."""
        self._was_at = until
        self._options = options
        self._warn = warn
        self._wake = wake
        self._connections = PgConnections(options)
        self._table: TableReader | None = None
        self._urgent = False
        self._streaming = False
        self._undecodable: SourceError | None = None
        self._unconfirmed: LsnPosition | None = None
        self._last_heard = self._last_sent = time.monotonic()

    def look(self, stored: Position | None) -> None:
        """Raises what `open` would refuse with this position. Changes nothing, and leaves nothing open."""
        try:
            admitted = self._admit(stored, look_only=True)
            if admitted is not None and admitted[2].position is not None:
                self._require_whole(admitted[2].position)
        finally:
            self.close()

    def _admit(
        self, stored: Position | None, *, look_only: bool = False
    ) -> tuple[LogIdentity, SlotState | None, ResumeDecision] | None:
        """Connects, and judges `stored` by server, publication and slot. None for a look before the first start, at
        which there is no more to judge yet.
        """
        if stored is not None and not isinstance(stored, LsnPosition):
            raise other_kind(stored, "Postgres")
        if stored is not None:
            require_complete(stored.recovery)
        options = self._options
        self._control = self._connections.open()
        self._stream = self._connections.open(replication=True)
        catalogue.require_able(self._control)
        require_promoted(self._control, options.slot)
        server = catalogue.identify(self._stream)
        before, stored = stored, stored and follow(self._stream, stored, server)
        if stored is not None and not options.adopt:
            require_same_server(stored, server)
        self._follow_rewind(before, server)
        if look_only and (stored is None or stored.creating):
            return None
        if stored is None or stored.creating:
            # Before the slot: a slot decodes the catalogue as of its own past, where the publication must exist.
            publication.ensure_publication(self._control, options, create=options.create)
        self._published = self._read_published()
        publication.require_columns(self._control, options)
        PartitionWatch(options.table, 0).verify(self._control, self._published)
        found = LogIdentity(
            server.system_id,
            server.timeline,
            server.database,
            options.slot,
            options.table,
            self._published.fingerprint,
        )
        self._status_interval = self._choose_status_interval()
        slot = catalogue.read_slot(self._control, options.slot)
        admission = check_resume(stored, found, slot, server_lsn=server.lsn, adopt=options.adopt)
        self._require_creatable(stored, admission.position)
        return found, slot, admission

    def open(self, stored: Position | None, store: Callable[[Position], None]) -> Position:
        """Starts at `stored`, or creates the slot on a first start; `store` writes a position durably at once."""
        admitted = self._admit(stored)
        assert admitted is not None  # noqa: S101 - only for a look
        found, slot, admission = admitted
        options, before = self._options, stored
        if admission.position is None:
            start, exported = self._create(found, store, again=admission.step is ResumeAction.RECREATE)
            self._members = PartitionWatch(options.table, start.watched)
        else:
            start, exported = self._require_whole(admission.position), None
        if start.table_read is not None:
            start = self._open_table(start, exported)
        if admission.step is not ResumeAction.STREAM or start != before:
            store(start)
        holding: WindowTracker | None = None
        kept = slot.confirmed_lsn if slot is not None and admission.step is ResumeAction.STREAM else start.lsn
        if options.replay_window:
            holding = WindowTracker(options.replay_window, kept, start, options.past)
        self._feedback = Feedback(options.slot, start, confirmed=kept, holding=holding, warn=self._warn)
        if holding is not None:
            self._feedback.find_disk(self._control)
        self._begin(start)
        return start

    def read(self, limit: int, limit_bytes: int, wait: float) -> Chunk:
        """Up to `limit` rows; waits at most `wait` seconds for the first of them."""
        if self._table is not None:
            return self._read_table(limit, limit_bytes)
        if self._undecodable is not None:
            raise self._undecodable
        self._pulse()
        self._look(self._verify_publication)
        self._members.advance(self._feedback.verified)
        transactions = self._transactions
        transactions.watched = self._feedback.watched or transactions.watched
        rows = transactions.rows = []
        taken, more = self._take(limit, limit_bytes)
        if not rows and not more and wait and self._wait(wait):
            taken, more = self._take(limit, limit_bytes)
            self._last_heard = time.monotonic()
        # The rest of a transaction follows at once, and a position behind its Commit needs no cut. If it does not, it
        # is a large one on a slow link, and there are other things to look after.
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
        """Feeds what has arrived to the transactions: how many bytes that was, and whether a limit ended it."""
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
                # One more than asked for: to read it is to have read the Commit that may stand before it.
                if len(rows) > limit or taken >= limit_bytes or transactions.columns_changed:
                    # Rows of the old columns go by themselves: should the new ones not be understood, the old are out.
                    transactions.columns_changed = False
                    return taken, True
        except SourceError as error:
            named = transactions.named(error)
            if named is error or not rows:
                raise named from None
            # What came before is published first, or no start would ever get further than here.
            self._undecodable = named
            return taken, True
        return taken, False

    def settle(self) -> None:
        """Must pass before a position without rows is stored: nothing was silently left out of the stream."""
        if self._table is None:
            self._verify_publication()
        self._urgent = False

    def confirm(self, position: Position) -> None:
        """Tells the server that `position` is stored; it may let go of the log behind it."""
        if self._table is None and isinstance(position, LsnPosition):
            self._unconfirmed = position
            self._confirm_known()

    def _confirm_known(self) -> None:
        """Not before the log is known to be the one that was read: another one would lose what it has up to there."""
        stored = self._unconfirmed
        if stored is not None and self._transactions.arrived:
            self._unconfirmed = None
            if self._feedback.advance(stored):
                self._send_status()

    def keep_alive(self) -> None:
        """To be called every second or so while `read` is not: the server must hear from us, and we expect nothing."""
        self._last_heard = time.monotonic()
        if self._table is not None:
            return
        # Also while nothing can be published: what is stored may be confirmed, if the server needs the room. For all
        # else there is time: what is wrong with the publication is for `read` to say, behind what was read.
        self._look(lambda: False)
        if time.monotonic() - self._last_sent > self._status_interval:
            self._send_status()

    def passed(self, position: Position) -> str:
        return self._feedback.passed(position.lsn) if isinstance(position, LsnPosition) else ""

    def close(self) -> None:
        if self._streaming:
            # Hanging up could overtake the last confirmation: the server answers the end of the copy after it.
            self._streaming = False
            self._stream.end_copy(FAREWELL_SECONDS)
        self._connections.close()

    def _follow_rewind(self, stored: LsnPosition | None, server: ServerIdentity) -> None:
        until = self._was_at()
        if not isinstance(until, LsnPosition):
            return
        self.until = followed = follow(self._stream, until, server)
        if stored is not None and not self._options.adopt:
            require_same_past(stored, until, server, followed)

    def _require_creatable(self, stored: LsnPosition | None, position: LsnPosition | None) -> None:
        """Refuses a first start that would not do what the settings say."""
        options = self._options
        if stored is None and position is not None and options.beginning:
            raise ConfigError(
                f"the slot {options.slot} cannot be adopted with `start: beginning`",
                why="Which rows were in the table before it began is not known any more: none would be published.",
                remedy="Set source.start: now to go on from the slot without them, or drop the slot and start without "
                "--adopt to publish the table from its beginning.",
            )
        if position is not None or options.create:
            return
        if options.beginning:
            raise ConfigError(
                f"there is no slot {options.slot}, and source.create is false",
                why="`start: beginning` reads the table under the snapshot of the slot it creates; one made by hand "
                "has none.",
                remedy="Set source.create: true for the first start, or start: now.",
            )
        raise SlotMissing(
            f"there is no slot {options.slot}",
            why="source.create is false, so Tailrace does not create it.",
            remedy=f"SELECT pg_create_logical_replication_slot('{options.slot}', 'pgoutput'); and start once "
            "with --adopt: only rows written after that are published. If the pipeline has run before, run `tailrace "
            "recover plan FILE` instead, which finds what was missed.",
        )

    def _require_whole(self, position: LsnPosition) -> LsnPosition:
        """Refuses to go on if rows entered the table past the publication since; with --adopt they are given up."""
        options = self._options
        is_known = position.watched and not options.adopt
        if not is_known:
            position = replace(position, watched=catalogue.oldest_running(self._control), moves_before=0)
        self._members = PartitionWatch(options.table, position.watched)
        if is_known:
            # It remembers what it found well: while streaming there is no time to read a large table once more.
            self._members.verify(self._control, self._published, timeout=SORT_TIMEOUT)
        return position

    def _create(self, found: LogIdentity, store: Callable[[Position], None], *, again: bool) -> tuple[LsnPosition, str]:
        options = self._options
        now = time.time_ns() // 1_000_000
        # The intention is stored first. Killed between the next lines, a later start knows that a slot of this name
        # is ours and unused, and creates it anew; without it an unknown slot would have to be refused.
        store(LsnPosition(found, 0, now, creating=True))
        failpoints.reached(failpoints.SLOT_INTENDED)
        if again:
            catalogue.drop_slot(self._control, options.slot)
        lsn, exported = catalogue.create_slot(self._stream, options.slot, failover=options.failover)
        failpoints.reached(failpoints.SLOT_CREATED)
        snapshot = catalogue.snapshot_text(self._control, exported)
        watched = Snapshot.parse(snapshot).xmin
        read = TableRead("") if options.beginning else None
        begun = "" if options.beginning else snapshot
        return LsnPosition(
            found, lsn, now, table_read=read, watched=watched, last=LastTransaction(lsn), begun=begun
        ), exported

    def _open_table(self, start: LsnPosition, exported: str | None) -> LsnPosition:
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
        )
        return self._table.start

    def _read_table(self, limit: int, limit_bytes: int) -> Chunk:
        assert self._table is not None  # noqa: S101 - the caller looked
        page = read_page(self._table, limit, limit_bytes)
        if page is not None:
            return page
        self._table.close()
        self._table = None
        self._start_streaming()
        # Soon stored, so that a restart need not look at the table again.
        self._urgent = True
        return Chunk([], self._transactions.position, more=False, urgent=True)

    def _begin(self, start: LsnPosition) -> None:
        schema, table = split_table(self._options.table)
        self._transactions = Transactions(
            start,
            schema=schema,
            table=table,
            halt_on_change=self._options.halt_on_change,
            relation_id=self._published.relation_id,
            text=self._stream.text,
            moved_by=self._options.id_column if self._published.moves else None,
            adopted=self._options.adopt,
        )
        if self._table is None:
            self._start_streaming()

    def _start_streaming(self) -> None:
        options = self._options
        start = self._transactions.position
        names = quote(options.publication).replace("'", "''")
        self._stream.begin_copy(
            f"START_REPLICATION SLOT {quote(options.slot)} LOGICAL {format_lsn(start.resume_lsn)} "
            f"(proto_version '1', publication_names '{names}')"
        )
        self._streaming = True
        # The slot is ours now. Had it been moved since admission, the server would have begun there, silently.
        slot = catalogue.read_slot(self._control, options.slot)
        if slot is not None and slot.confirmed_lsn > start.lsn:
            raise SlotAhead(
                f"the slot {slot.name} was moved to {format_lsn(slot.confirmed_lsn)} while starting at {start}",
                why="Another session advanced it.",
                remedy="Find out who did; the rows in between are in the outbox table: `tailrace recover plan FILE`.",
            )
        # With --adopt the log is taken as it is: where the pipeline was before it was set back may not be in it.
        until = self.until if isinstance(self.until, LsnPosition) and not options.adopt else None
        self._transactions.expect(expected_transactions(start, until, slot.confirmed_lsn if slot is not None else 0))
        self._poll = select.poll()
        self._poll.register(self._stream.pgconn.socket, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        self._last_heard = self._last_sent = time.monotonic()
        failpoints.reached(failpoints.STREAM_STARTED)

    def _choose_status_interval(self) -> float:
        """How often the server must hear from us: its own patience may be shorter than ours, and 0 has no end."""
        shown = self._stream.query("SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'")[0][0]
        patience = int(shown or 0) / 1000 or self._options.link_timeout
        return min(patience, self._options.link_timeout) / 3

    def _read_published(self) -> publication.Published:
        return publication.read_published(self._control, self._options)

    def _verify_publication(self) -> bool:
        """Raises if rows may have been left out of the stream; False if that is not known at the moment."""
        found = self._read_published()
        before, now = self._published.fingerprint, found.fingerprint
        if now != before:
            raise PublicationBroken(
                "the publication was changed, or dropped and created anew, or the table was taken out and put back",
                why=f"Its catalogue rows changed from {before} to {now} while streaming.",
                remedy="Rows committed meanwhile are in the table, not in the stream: `tailrace recover plan FILE` "
                "finds them. To go on without them, start once with --adopt.",
            )
        return self._members.verify(self._control, found)

    def _keepalive(self, frame: bytes) -> None:
        keepalive = decode_keepalive(frame)
        self._feedback.heard(keepalive.wal_end)
        self._transactions.idle(keepalive.wal_end, unix_ms(keepalive.send_time))
        if keepalive.reply_requested:
            self._urgent = True
            self._send_status()

    def _look(self, verify: Callable[[], bool]) -> None:
        if self._feedback.look(self._control, verify):
            self._send_status()
        self._urgent = self._urgent or self._feedback.is_pressed

    def _pulse(self) -> None:
        now = time.monotonic()
        if now - self._last_heard > self._options.link_timeout:
            raise SourceUnavailable(
                f"Postgres has been silent for {self._options.link_timeout:.0f} s",
                why="The network path is half-open, or the server hangs.",
                remedy="Tailrace reconnects by itself; source.link_timeout sets the bound.",
            )
        if now - self._last_sent > self._status_interval:
            self._send_status(reply=True)

    def _send_status(self, *, reply: bool = False) -> None:
        if self._undecodable is not None:
            return  # the server has ended the stream, and listens no more
        self._stream.send(self._feedback.update(reply=reply))
        self._last_sent = time.monotonic()

    def _wait(self, seconds: float) -> bool:
        """Whether something came on the stream within `seconds`; a wake-up ends the wait, too."""
        socket = self._stream.pgconn.socket
        return any(fd == socket for fd, _ in self._poll.poll(seconds * 1000))
