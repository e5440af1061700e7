"""Standby: waits while another instance runs the pipeline, without disturbing it, before taking over.

The order is a guarantee: read the source and the stored position; wait while the slot or the pipeline is in use; only
then take ownership and fence. An instance that cannot run never stops one that does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tailrace.errors import Action, PipelineBusy, SlotBusy, TailraceError
from tailrace.kafka.topics import partition_counts
from tailrace.positions.base import Position
from tailrace.state import offsets
from tailrace.state.owner_watch import OwnerWatch
from tailrace.state.status import announce, withdraw_standby
from tailrace.state.target_state import RUNNING
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.wiring import Wiring

LOOK_SECONDS = 0.5
"""How often a waiting instance checks whether the pipeline is free."""
STALE_SECONDS = 1.0
"""After this long, it is checked again that nobody runs the pipeline before it is taken over."""
ANNOUNCE_SECONDS = 10.0
"""How often it announces that it waits."""


class Standby:
    """One instance before it owns the pipeline. Used by the supervisor's thread only."""

    def __init__(
        self,
        wiring: Wiring,
        log: StructuredLogger,
        stopped: threading.Event,
        on_state: Callable[[str, TailraceError | None], None] = lambda _state, _error: None,
        *,
        follow_target: bool = False,
    ) -> None:
        """`follow_target`: does not take over while the stored target state is PAUSED or STOPPED."""
        self._wiring = wiring
        self._on_state = on_state
        self._follow_target = follow_target
        self._log = log
        self._stopped = stopped
        self._watch: OwnerWatch | None = None
        self._reported = ""
        self._announced_at = float("-inf")
        self._is_announced = False
        self.earlier_failure = ""
        """The error with which the last run of the pipeline failed, if it did; known after `wait`."""

    def wait(self) -> bool:
        """Waits until this instance may take over; returns False if it was stopped. Raises what prevents a start."""
        watch = self.watch
        while not self._stopped.is_set():
            began = time.monotonic()
            watch.look()
            busy = self._busy(watch)
            if busy is None and time.monotonic() - began > STALE_SECONDS:
                # It took long, or this process was suspended: another instance may have started meanwhile.
                watch.look()
                busy = _in_use(watch) if watch.in_use else None
            if busy is None and self._follow_target and watch.target not in (None, RUNNING):
                self._on_state("WAITING", _suspended(watch.target))
            elif busy is None:
                self.earlier_failure = watch.failure
                return True
            elif watch.is_live or not watch.in_use:
                self._report(busy, standby=watch.in_use)
            self._stopped.wait(LOOK_SECONDS)
        return False

    def _busy(self, watch: OwnerWatch) -> TailraceError | None:
        """Returns an error that describes who else runs the pipeline; None if nobody does."""
        if watch.is_live and self._reported:
            return _in_use(watch)  # the source was checked before, and is checked again when the other instance ends
        try:
            self._check_source(watch)
        except SlotBusy as busy:
            return _in_use(watch) if watch.in_use else _held(busy, watch)
        return _in_use(watch) if watch.in_use else None

    def _check_source(self, watch: OwnerWatch) -> None:
        stored = watch.stored
        while True:
            try:
                self._check_start(stored, watch)
            except TailraceError as error:
                if error.action is Action.RETRY:
                    raise
                if watch.is_free:
                    return  # no other instance: the start itself reports the error
                # The position may have moved during the check, or was never committed: then look again.
                checked, stored = stored, offsets.read(self._wiring.kafka)
                if stored == checked:
                    raise
            else:
                return

    def _check_start(self, stored: Position | None, watch: OwnerWatch) -> None:
        self._wiring.check_start(stored)
        if watch.is_live:
            # Another instance runs without this server's slot: this server may be a copy of the other one.
            self._wiring.check_same_log(stored)

    def is_in_use(self, *, wait: bool) -> bool:
        """Whether another instance runs the pipeline, or may. `wait`: up to some seconds, until it is certain."""
        try:
            if self._watch is None and self._wiring.kafka.offsets_topic not in partition_counts(self._wiring.admin()):
                return False
            watch = self.watch
            watch.look()
            while wait and watch.in_use and not watch.is_live and not self._stopped.is_set():
                self._stopped.wait(LOOK_SECONDS)
                watch.look()
        except TailraceError:
            return False
        return watch.in_use

    def has_position(self) -> bool:
        """Whether a position was stored when the topic was last read."""
        return self._watch is not None and self._watch.stored is not None

    def announce(self, state: str, error: TailraceError | None) -> bool:
        """Announces the state of this instance, separately from the state of the pipeline."""
        self._announced_at = time.monotonic()
        self._is_announced = True
        return announce(self._wiring.kafka, state, error, standby=True)

    def end(self, *, keep_watch: bool) -> None:
        """Ends the waiting. `keep_watch`: the watch stays open for another user."""
        if self._watch is not None and not keep_watch:
            self._watch.close()
        self._watch = None
        if self._is_announced:
            withdraw_standby(self._wiring.kafka)
            self._is_announced = False

    @property
    def watch(self) -> OwnerWatch:
        if self._watch is None:
            self._watch = OwnerWatch(self._wiring.kafka)
        return self._watch

    def _report(self, busy: TailraceError, *, standby: bool) -> None:
        """Logs the reason once, and announces it again and again for `tailrace status`."""
        self._on_state("WAITING" if standby else "RETRYING", busy)
        if busy.what != self._reported:
            self._reported = busy.what
            self._announced_at = float("-inf")
            self._log.warning("waiting", error=busy.code, what=busy.what, why=busy.why, remedy=busy.remedy)
        if time.monotonic() - self._announced_at < ANNOUNCE_SECONDS:
            return
        if standby:
            self.announce("WAITING", busy)
        else:
            announce(self._wiring.kafka, "RETRYING", busy)
            self._announced_at = time.monotonic()


def _suspended(target: str | None) -> PipelineBusy:
    return PipelineBusy(
        f"the pipeline is {target}",
        why="Somebody has paused or stopped it.",
        remedy="Resume it: this instance then takes over within seconds.",
    )


def _in_use(watch: OwnerWatch) -> PipelineBusy:
    return PipelineBusy(
        f"another instance runs this pipeline: {watch.owner}",
        why="Only one instance publishes at a time. This one waits without disturbing it.",
        remedy="It takes over within seconds after the other one ends. Stop this one if you do not want that.",
    )


def _held(busy: SlotBusy, watch: OwnerWatch) -> SlotBusy:
    last = "" if watch.owner is None else f". The last instance of the pipeline, {watch.owner}, sends no heartbeat"
    return SlotBusy(
        busy.what,
        why=f"{busy.why}{last}",
        remedy="This instance waits until the slot is free. The server frees the slot of a hanging client after "
        "wal_sender_timeout; to do it now: SELECT pg_terminate_backend(PID).",
    )
