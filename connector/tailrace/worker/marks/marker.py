"""The thread that writes delivery marks, behind the pipeline and never in its way.

The publisher hands over what a committed batch contained; the thread writes that to the database a moment later. It
keeps a bounded number of ids. If it falls behind, and after a restart, it finds in the database what is not marked. A
failure is logged once and retried: events are published all the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tailrace import failpoints
from tailrace.dlq.parked_keys import state_topic, waiting_topic
from tailrace.dlq.resolutions import resolutions_topic
from tailrace.dlq.undelivered import WAITING, ResolutionWatch, Undelivered, of_record, of_waiting, read_undelivered
from tailrace.errors import MarksRefused, TailraceError
from tailrace.event import Record
from tailrace.kafka.client import KafkaOptions
from tailrace.pipeline.batch import Batch
from tailrace.positions.base import Position, is_streaming
from tailrace.state.sequences import sequences_topic
from tailrace.worker.marks.store import Changes, MarkStore, Probe

EVERY_SECONDS = 0.2
"""How often row marks are written."""
PROBE_SECONDS = 1.0
"""How often the watermark advances, and resolutions of dead letters are read."""
CATCH_UP_SECONDS = 5.0
"""The pause between two searches for rows without marks."""
RETRY_SECONDS = (1.0, 30.0)
"""The first and the longest pause after a failure."""
QUEUED = 50_000
"""Events that wait for their mark in memory. If there are more, they are found in the database later."""
LETTERS = 500
"""Undelivered events written at a time."""
SHARE = 3.0
"""While marks are behind, the pause after each step, as a multiple of its time: publishing goes first."""
IDLE_SHARE = 0.5
"""The same while no events are published."""
LEAVE_SECONDS = 2.0


class DeliveryMarker:
    """One for each attempt. `committed` is called by the publisher's thread, `close` by the supervisor's."""

    def __init__(
        self,
        store: MarkStore,
        kafka: KafkaOptions,
        *,
        rows: bool,
        id_column: str,
        stored: Callable[[], Position | None],
        warn: Callable[[TailraceError], None],
    ) -> None:
        """`stored` returns the stored position; marks begin when the first read is complete."""
        self._store = store
        self._kafka = kafka
        self._rows = rows
        self._id_column = id_column
        self._stored = stored
        self._warn = warn
        self._special = {
            kafka.dead_letter_topic,
            waiting_topic(kafka),
            state_topic(kafka),
            resolutions_topic(kafka),
            sequences_topic(kafka),
        }
        self._lock = threading.Lock()
        self._queue = Changes()
        self._overflowed = False
        self._batches = 0
        """Committed batches with events: the watermark follows only while there are new ones."""
        self._covered = -1
        """How many of them the written watermark covers."""
        self._paced = 0
        self._probed = -1
        """How many there were when the last probe was taken."""
        self._saved: Position | None = None
        """The position of the last write, if that wrote marks: those may be of events behind it."""
        self._pending: tuple[Probe, int] | None = None
        self._next_probe = 0.0
        self._next_resolutions = 0.0
        self._next_retry = 0.0
        self._watch: ResolutionWatch | None = None
        self._is_open = self._behind = False
        self._undelivered = True
        self._began: Position | None = None
        self._warned = ""
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="marks", daemon=True)

    def start(self, began: Position | None) -> None:
        """`began` is the stored position at the start of the attempt; what comes later passes through `committed`."""
        self._began = began
        self._thread.start()

    def store_baseline(self, position: Position) -> None:
        """The log before `position` was skipped (`--adopt`): its events are not published, so they get no marks.

        Call it before `start`, and before the position is stored.
        """
        try:
            if self._rows:
                self._store.store_baseline(position)
        except MarksRefused as error:
            self._warn(error)
        finally:
            self._store.close()

    def committed(self, batch: Batch) -> None:
        """Notes what became of the events of a batch, right after its commit."""
        if not batch.records:
            return
        try:
            changes: Changes | None = self._changes(batch)
        except Exception:  # noqa: BLE001 - publishing must not fail because of marks
            changes = None
        with self._lock:
            self._batches += 1
            if changes is None or self._queue.size + changes.size > QUEUED:
                self._queue, self._overflowed = Changes(), True
            else:
                self._queue.extend(changes)

    def waits(self) -> bool:
        """Whether the watermark waits for the next stored position, although no events may come."""
        return self._pending is not None

    def close(self) -> None:
        self._leaving.set()
        if self._thread.is_alive():
            self._thread.join(LEAVE_SECONDS)

    def _changes(self, batch: Batch) -> Changes:
        changes = Changes()
        special = self._special
        if not batch.topics.isdisjoint(special):
            for record in batch.records:
                if record.topic in special:
                    changes.undelivered += self._undelivered_in(record)
                elif self._rows:
                    changes.published.append(event_id(record))
        elif self._rows:
            changes.published = [event_id(record) for record in batch.records]
        if batch.other_records:
            # Perhaps a release: its events had waited.
            changes.released = [event_id(record) for record in batch.records if record.topic not in special]
        return changes

    def _undelivered_in(self, record: Record) -> list[Undelivered]:
        if record.topic == waiting_topic(self._kafka):
            return [of_waiting(record.headers, record.value)]
        if record.topic != self._kafka.dead_letter_topic:
            return []
        found = of_record(record, self._id_column)
        return [] if found is None else [found]

    def _run(self) -> None:
        pause = RETRY_SECONDS[0]
        try:
            while not self._leaving.wait(EVERY_SECONDS):
                try:
                    self._tick()
                except TailraceError as error:
                    self._failed(error)
                except Exception as error:  # noqa: BLE001 - a thread that ends would leave marks behind silently
                    what = f"delivery marks cannot be written: {type(error).__name__}: {error}"
                    self._failed(MarksRefused(what, remedy="Tailrace tries again by itself. Report it if it stays."))
                else:
                    if not self._behind:
                        # Not before: what failed may be tried again only after several rounds.
                        pause, self._warned = RETRY_SECONDS[0], ""
                    continue
                self._leaving.wait(pause)
                pause = min(2 * pause, RETRY_SECONDS[1])
            self._finish()
        finally:
            self._store.close()
            self._close_watch()

    def _close_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _failed(self, error: TailraceError) -> None:
        """Reports an error once. What was to be marked is found in the database after the next `open`."""
        self._is_open, self._behind, self._pending = False, True, None
        if self._warned != error.code:
            self._warn(error)
        self._warned = error.code
        self._store.close()
        self._close_watch()  # what it has read may not be written: all is read again

    def _finish(self) -> None:
        """Writes the marks of the last batches, if that is possible at once; otherwise the next start does."""
        try:
            if self._is_open and not self._behind:
                self._tick()
        except Exception:  # noqa: BLE001, S110 - the next start writes them
            pass

    def _tick(self) -> None:
        # The position first: everything up to it is then in the queue.
        stored = self._stored()
        if stored is None or not is_streaming(stored):
            return
        if not self._is_open:
            self._open(stored)
        # Before the queue is taken: it then contains the dead letters that these resolutions are about.
        redriven = self._read_resolutions()
        queue = self._take_queue()
        if queue.size or self._may_advance():
            failpoints.reached(failpoints.MARKS_PENDING)
        passed = self._passed(stored)
        if self._behind and passed is not None:
            self._catch_up(*passed)
            passed = None
        if queue.size or passed is not None or self._must_follow(stored):
            self._write(queue, stored, passed)
        self._remove_redriven(redriven)
        if time.monotonic() >= self._next_retry:
            self._next_retry = time.monotonic() + PROBE_SECONDS
            self._store.retry_unseen()

    def _take_queue(self) -> Changes:
        with self._lock:
            queue, self._queue = self._queue, Changes()
            if self._overflowed:
                # An older probe may lie before the events whose ids were dropped.
                self._behind, self._overflowed, self._pending = True, False, None
                self._store.fell_behind()
        return queue

    def _open(self, stored: Position) -> None:
        began = self._began
        streamed = began is not None and is_streaming(began)
        is_marked = self._store.open(began if began is not None and streamed else stored)
        self._behind = self._behind or not is_marked or not streamed
        self._undelivered = self._store.has_undelivered()
        self._is_open = True

    def _passed(self, stored: Position) -> tuple[Probe, int] | None:
        """Takes a probe if one is due; returns the one that the stored position has passed, if any."""
        now = time.monotonic()
        if self._pending is None and now >= self._next_probe and (self._behind or self._may_advance()):
            self._next_probe = now + PROBE_SECONDS
            batches = self._batches
            if not self._rows and batches != self._probed:
                # The watermark follows until it shows all of these events, although no others may come.
                self._store.fell_behind()
                self._probed = batches
            probe = self._store.probe()
            if self._rows and self._behind and not probe.is_complete:
                return None  # it would not show all events whose marks are missing
            self._pending = (probe, batches)
        if self._pending is not None and self._store.end_of(stored) >= self._pending[0].end:
            passed, self._pending = self._pending, None
            return passed
        return None

    def _write(self, changes: Changes, stored: Position, passed: tuple[Probe, int] | None) -> None:
        self._undelivered = self._undelivered or bool(changes.undelivered)
        # While some marks of earlier events are missing, it is not stored that all are written.
        self._store.write(changes, None if self._behind else stored, passed and passed[0])
        self._saved = stored if changes.size else None
        if passed is not None and passed[0].is_complete:
            self._covered = passed[1]

    def _must_follow(self, stored: Position) -> bool:
        """Whether events were committed between the position and the queue of the last write, and no others came.

        Then the position of that write lies before its marks. A watermark follows by its probes.
        """
        return not (self._behind or self._store.has_watermark) and self._saved not in (None, stored)

    def _may_advance(self) -> bool:
        """Whether there are events that the watermark does not cover."""
        return self._store.has_watermark and self._covered != self._batches

    def _catch_up(self, probe: Probe, batches: int) -> None:
        """Writes the marks that are missing before a probe: first the undelivered events, then all others."""
        page: list[Undelivered] = []
        waiting: list[str] = []
        for found in read_undelivered(self._kafka, self._id_column):
            page.append(found)
            if found.reason == WAITING:
                waiting.append(found.event_id)
            if len(page) >= LETTERS:
                self._store.save_undelivered(page)
                page = []
        self._store.save_undelivered(page)
        self._store.keep_waiting(waiting)
        self._undelivered = self._store.has_undelivered()
        if self._store.catch_up(probe, lambda: not self._leaving.is_set(), self._pace):
            self._behind = False
            if probe.is_complete:
                self._covered = batches
        if self._rows:
            # If marks fall behind again, as in a drain, the next search covers more rows.
            self._next_probe = time.monotonic() + CATCH_UP_SECONDS

    def _pace(self, seconds: float) -> None:
        is_busy, self._paced = self._batches != self._paced, self._batches
        self._leaving.wait((SHARE if is_busy else IDLE_SHARE) * seconds)

    def _read_resolutions(self) -> list[str]:
        """Returns the positions of dead letters that were redriven since the last call; at the end none."""
        now = time.monotonic()
        if now < self._next_resolutions or not self._undelivered or self._leaving.is_set():
            return []
        self._next_resolutions = now + PROBE_SECONDS
        if self._watch is None:
            self._watch = ResolutionWatch(self._kafka)
        return self._watch.read()

    def _remove_redriven(self, positions: list[str]) -> None:
        for at in range(0, len(positions), LETTERS):
            self._store.remove_redriven(positions[at : at + LETTERS])
        if positions:
            self._undelivered = self._store.has_undelivered()


def event_id(record: Record) -> str:
    """Returns the id of the event; the first header of every format."""
    found = record.headers[0][1]
    return found if isinstance(found, str) else (found or b"").decode()
