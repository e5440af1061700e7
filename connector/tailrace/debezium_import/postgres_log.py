"""Postgres's log from where Debezium's slot begins, read through a temporary copy of the slot.

The slot is confirmed by Debezium only up to what its offset has stored, so everything that may not be published yet is
behind that. It is decoded with Debezium's publication: one that was created later does not exist for older
transactions. The copy disappears with its session, also if this process is killed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from tailrace.debezium_import.offset import PostgresOffset
from tailrace.debezium_import.outbox_log import LogRow
from tailrace.errors import DebeziumOffsetUnfit, DebeziumRunning, SlotAhead, SlotMissing, WrongLog
from tailrace.positions.postgres import LastTransaction, LsnPosition, format_lsn, parse_lsn
from tailrace.sources.postgres import catalog
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.publication import read_published
from tailrace.sources.postgres.resume_check import SlotState
from tailrace.sources.postgres.snapshot import Snapshot
from tailrace.sources.postgres.table_rescan import LONGEST, LogRescan
from tailrace.sources.postgres.timelines import require_promoted
from tailrace.wakeup import Wakeup

READ_BYTES = 8 << 20
WAIT_SECONDS = 0.2
FLUSH_SECONDS = 2.0
"""Longer than three times wal_writer_delay, within which the server flushes everything."""
_LOG_ENDS = "SELECT pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn()"
ATTEMPTS = 20
"""A slot in use may be confirmed further between two steps."""


class PostgresOutboxLog(LogRescan):
    """Implements `OutboxLog`, also for a slot that is in use."""

    def __init__(self, options: PostgresOptions, offset: PostgresOffset, wakeup: Wakeup) -> None:
        super().__init__(options, name="import", wakeup=wakeup)
        self._of = options
        self._offset = offset
        self._change_lsn = 0
        self.start = self._open()
        self._snapshot = Snapshot.parse(catalog.snapshot_text(self._control))
        self._end = self._log_end()

    def rows(self) -> Iterator[LogRow]:
        transactions, offset, reached = self._transactions, self._offset, self.start.lsn
        before = (0, 0)
        while reached < self._end:
            # A limit of none ends each call behind the first row, whose position is then exact.
            chunk = self.read(0, READ_BYTES, WAIT_SECONDS)
            assert isinstance(chunk.position, LsnPosition)  # noqa: S101 - of this source
            for row in chunk.rows:
                change = transactions._xid, self._change_lsn
                commit_lsn = parse_lsn(row.position.partition(":")[0])
                covered = offset.covers(commit_lsn, *change, is_first=change != before)
                before = change
                age = self._snapshot.xmax + _signed(transactions._xid - self._snapshot.xmax)
                yield LogRow(row, chunk.position, covered, age)
            if not chunk.rows:
                # The server need not say by itself that there is nothing more. The slot is a copy: it may move.
                self._send_status(reply=True)
                reached = chunk.position.lsn if not transactions.open else reached

    def begun(self, pending: int | None) -> str:
        """A snapshot of all transactions before the oldest one that was running, or that is pending."""
        oldest = self._snapshot.xmin if pending is None else min(pending, self._snapshot.xmin)
        return f"{oldest}:{oldest}:"

    def extend(self) -> None:
        self._end = self._log_end()

    def _log_end(self) -> int:
        """Returns the end of what is flushed, which is all that Debezium can have seen.

        With synchronous_commit off, commits that are visible already are flushed a moment later: waits for them.
        """
        deadline = time.monotonic() + FLUSH_SECONDS
        ((written, _),) = self._control.query(_LOG_ENDS)
        while True:
            ((_, flushed),) = self._control.query(_LOG_ENDS)
            if parse_lsn(str(flushed)) >= parse_lsn(str(written)) or time.monotonic() > deadline:
                return parse_lsn(str(flushed))
            time.sleep(WAIT_SECONDS)

    def _open(self) -> LsnPosition:
        for attempt in range(ATTEMPTS):
            start = slot_start(self._of, self._offset)
            try:
                self.open(start, lambda _: None)
            except SlotAhead:
                self.close()
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                break
        self._watch_frames()
        return start

    def _watch_frames(self) -> None:
        """Notes the LSN of each change, which is in the header of its frame."""
        stream: Any = self._stream
        frames = stream.frames

        def noted() -> Iterator[bytes]:
            for frame in frames():
                self._change_lsn = int.from_bytes(frame[1:9])
                yield frame

        stream.frames = noted


def _signed(distance: int) -> int:
    """Returns the distance between two transaction ids of 32 bits, which wrap around."""
    return (distance + (1 << 31)) % (1 << 32) - (1 << 31)


def slot_start(options: PostgresOptions, offset: PostgresOffset) -> LsnPosition:
    """Returns the position where the slot begins; raises if it cannot continue Debezium's work."""
    with options.connect() as control, options.connect(replication=True) as stream:
        catalog.require_able(control)
        require_promoted(control, options.slot)
        server = catalog.identify(stream)
        published = read_published(control, options)
        slot = _usable(catalog.read_slot(control, options.slot), options, server.database)
    if slot.confirmed_lsn > max(offset.lsn, offset.commit_lsn):
        raise DebeziumOffsetUnfit(
            f"the slot {slot.name} begins at {format_lsn(slot.confirmed_lsn)}, behind Debezium's offset {offset}",
            why="Rows between the two may not be published, and the slot no longer has them. Debezium confirms only "
            "what its offset has stored, so this is not its slot, the offset is an old one, or its driver confirms by "
            "itself (lsn.flush.mode=connector_and_driver).",
            remedy="Check source.slot and --offsets. If the slot is new, or confirmed by the driver, let Debezium run "
            "until it has published an event that is newer than the slot. Nothing was changed.",
        )
    found = server.log(options.slot, options.table, published.fingerprint)
    last = LastTransaction(slot.confirmed_lsn)
    return LsnPosition(found, slot.confirmed_lsn, time.time_ns() // 1_000_000, last=last)


def _usable(slot: SlotState | None, options: PostgresOptions, database: str) -> SlotState:
    if slot is None:
        raise SlotMissing(
            f"there is no slot {options.slot}",
            why="Debezium's slot was dropped (slot.drop.on.stop?), or has another name.",
            remedy="Correct source.slot. If it was dropped, events since Debezium's offset are in the table only: "
            "start the pipeline with `start: now`, and publish them with `tailrace replay plan --from-table`.",
        )
    if slot.plugin != "pgoutput" or slot.database != database:
        raise WrongLog(
            f"the slot {slot.name} has plugin {slot.plugin} and belongs to database {slot.database}",
            why=f"Tailrace needs pgoutput in database {database}.",
            remedy=f"Create a slot of your own while Debezium runs: {new_slot(options)} Write its name into "
            "source.slot, and take over when Debezium has published an event that is newer than it.",
        )
    if slot.wal_status == "lost" or slot.invalidation:
        raise WrongLog(
            f"the slot {slot.name} is invalidated ({slot.invalidation or 'wal_removed'})",
            why="The server removed WAL that Debezium had not read yet: nobody can continue from this slot.",
            remedy="Start the pipeline with a new slot and `start: now`, and publish what is missing with `tailrace "
            "replay plan --from-table`.",
        )
    return slot


def new_slot(options: PostgresOptions) -> str:
    """Returns the statement that creates a slot for Tailrace."""
    name = f"tailrace_{options.slot}"[:LONGEST]
    return f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput');"


def require_released(options: PostgresOptions, seconds: float) -> None:
    """Waits until no session reads the slot; raises DebeziumRunning if one still does after `seconds`."""
    deadline = time.monotonic() + seconds
    with options.connect() as control:
        while True:
            slot = catalog.read_slot(control, options.slot)
            if slot is None or slot.active_pid is None:
                return
            if time.monotonic() >= deadline:
                break
            time.sleep(WAIT_SECONDS)
    raise DebeziumRunning(
        f"the slot {options.slot} is in use by the server process {slot.active_pid}",
        why="Debezium still streams from it: its connector is running or paused (a paused one keeps reading), or the "
        "server has not noticed yet that it is gone.",
        remedy="Stop the connector: curl -X PUT CONNECT/connectors/NAME/stop; then try again. Nothing was changed.",
    )
