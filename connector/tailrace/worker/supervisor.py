"""Keeps a pipeline running: after an error, it starts again from the stored position.

Every retry is the same as a start: discard source and publisher, wait, and open them again. Errors that may pass are
retried with growing delays; all others stop the pipeline as FAILED, with error and remedy. Changes of state are
announced in Kafka.
"""

from __future__ import annotations

import gc
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace

from tailrace.dlq import resolutions
from tailrace.errors import (
    Action,
    Fenced,
    KafkaUnavailable,
    OutcomeUnknown,
    PipelineStalled,
    RecordDelayed,
    RecordsRefused,
    SourceError,
    TailraceError,
    TokenUnavailable,
    TopicLimitsChanged,
    TopicRefused,
    Unavailable,
)
from tailrace.kafka.publisher import Publisher
from tailrace.pipeline.loop import PipelineLoop
from tailrace.pipeline.processor import EventProcessor
from tailrace.positions.base import Position
from tailrace.state import offsets
from tailrace.state.ownership import Ownership
from tailrace.state.rewind_marker import Rewind
from tailrace.state.sequences import StoredSequences
from tailrace.state.status import announce
from tailrace.state.stored_state import StoredState
from tailrace.wakeup import Wakeup
from tailrace.worker import telemetry
from tailrace.worker.alert_rules import RecoveryRule
from tailrace.worker.alerts import RECOVERY, STALL, Alerts
from tailrace.worker.batch_log import BatchLog
from tailrace.worker.earlier_dead_letters import EarlierDeadLetters
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.outage import ServerOutage
from tailrace.worker.rewind import on_current_timeline, rewound, with_rewind_header
from tailrace.worker.standby import Standby
from tailrace.worker.wiring import Wiring

STEADY_SECONDS = 30.0
"""After a run of this length, or one that stored a position, delays start again with the shortest."""


Recover = Callable[[TailraceError, Wiring, Wakeup, Callable[[], bool]], bool]
"""Recovers from an error about a lost log; returns whether it did. The last argument asks whether to stop."""
StateObserver = Callable[[str, TailraceError | None], None]
"""Is called with each state of the instance: STARTING, RUNNING, WAITING, RETRYING, FAILED. Must return at once."""
ALERT_SECONDS, TELEMETRY_SECONDS = 0.5, 0.5
"""Time for the last calls of the webhook, and for the last export; SIGTERM must end the process within 5 s."""


class Supervisor:
    """Runs attempts until stopped or failed for good. `stop` may be called from a signal handler."""

    def __init__(
        self,
        wiring: Wiring,
        *,
        chance: Callable[[], float] | None = None,
        recover: Recover | None = None,
        on_state: StateObserver = lambda _state, _error: None,
        follow_target: bool = False,
    ) -> None:
        """`follow_target`: waits while the stored target state of the pipeline is PAUSED or STOPPED."""
        self._wiring = wiring
        self._recover = recover
        self._recovered = False
        self._wakeup = Wakeup()
        self._stopped = threading.Event()
        self._ownership = Ownership(wiring.kafka, uuid.uuid4().hex)
        self._ran = False
        self._progressed = False
        self.failure: TailraceError | None = None
        """The error of a FAILED pipeline, once it is logged."""
        self._kafka_away = False
        """Whether the last attempt failed because of Kafka: then nothing can be announced."""
        self._chance = {"chance": chance} if chance else {}
        self._log = StructuredLogger("tailrace.worker", pipeline=wiring.settings.pipeline)
        self._on_state = on_state
        self.metrics = wiring.metrics()
        self.metrics.observers.append(BatchLog(self._log))
        self._recovery = RecoveryRule()
        self._alerts: Alerts | None = None
        self.stored: Callable[[], Position | None] = lambda: None
        """Returns the position that the running attempt stored last."""
        self._standby = Standby(wiring, self._log, self._stopped, on_state, follow_target=follow_target)
        self._outage = ServerOutage(lambda event, server: self._log.info(event, server=server))

    def notify(self, kind: str, what: str, *, why: str = "", remedy: str = "") -> None:
        """Raises an alert. May be called from any thread."""
        if self._alerts is not None:
            self._alerts.notify(kind, what, why=why, remedy=remedy)

    def stop(self) -> None:
        self._stopped.set()
        self._wakeup.set()

    def run(self) -> None:
        """Runs until stopped; raises the error that needs a person."""
        alerts = self._alerts = self._wiring.alerts(self._log.of("tailrace.alerts"), self.metrics.alerted)
        exported = telemetry.start(self._wiring.settings.pipeline, self.metrics, self._log)
        try:
            self._run()
        finally:
            self._ownership.stop_heartbeat()  # heartbeats would make standby instances wait for nothing
            alerts.close(ALERT_SECONDS)
            exported.close(TELEMETRY_SECONDS)
            if self._wiring.rules is not None:
                self._wiring.rules.close()

    def _run(self) -> None:
        attempt = 0
        while not self._stopped.is_set():
            # An error references frames, and these the producer with its threads and sockets. The garbage collector
            # is nearly off, so each attempt frees the previous one here.
            left: TailraceError | None = None
            gc.collect()
            began = time.monotonic()
            self._progressed = False
            try:
                self._attempt()
            except RecordsRefused as refused:
                self.metrics.attempt_failed(refused)
                if self._is_given_up(refused.reasons):
                    error = TopicRefused(refused.what, why="; ".join(refused.reasons.values()))
                    self._fail(error)
                    raise error from None
                # The next attempt reads their rows again, and finds there whether to wait.
                self._log.of("tailrace.kafka").warning("refused", what=refused.what, events=len(refused.reasons))
                self._wiring.refused.update(self._wiring.record_retries.note(refused.reasons))
            except TopicLimitsChanged as changed:
                # Retried at once: batches get smaller each time, so this ends.
                self._log.of("tailrace.kafka").warning("topic limits", what=changed.what, why=changed.why)
            except TailraceError as ended:
                self.metrics.attempt_failed(ended)
                left = self._unless_replaced(self._wiring.diagnosed(ended))
                left = left and self._recovered_or(left)
                if left is None:
                    continue
                if left.action is not Action.RETRY and not self._still_ours(left):
                    self._fail(left)
                    raise left from None
                if self._progressed or time.monotonic() - began > STEADY_SECONDS:
                    attempt = 0
                attempt += 1
                if self._pause(left, attempt):
                    attempt = 0
        if not self._kafka_away:
            self._release()
        self._log.info("stopped")

    def _is_given_up(self, reasons: dict[str, str]) -> bool:
        """Whether nothing more can be done about refused records, because their events are dead-lettered already."""
        left = reasons.keys() - self._wiring.refused.keys()
        return not left or self._wiring.record_retries.has_given_up(left)

    def _release(self) -> None:
        # Announced before the release: afterwards only the next instance may announce states.
        if self._ownership.taken or not self._standby.is_in_use(wait=False):
            self._announce("STOPPED")
        self._ownership.release()
        self._standby.end(keep_watch=self._ownership.taken)

    def _ready(
        self,
        processor: EventProcessor,
        publisher: Publisher,
        rewind: Rewind | None,
        sequences: StoredSequences | None,
        *,
        parks: bool,
    ) -> EventProcessor:
        """Marks events that are published again. Events with a dead letter get no second one."""
        if sequences is not None:
            sequences.open(rewound(publisher.stored, rewind))
            processor = replace(processor, sequence=sequences)
        again, stored = with_rewind_header(processor, publisher.stored, rewind, parks=parks), publisher.stored
        if rewind is None or stored is None or again is processor or stored.progress >= rewind.until.progress:
            return again
        earlier = EarlierDeadLetters(self._wiring.kafka, rewind.id, by_position=True)
        if not earlier.read():
            return again
        resolutions.ensure(self._wiring.kafka, self._wiring.admin())
        publisher.amend = earlier.amend
        return earlier.decorated(again)

    def _attempt(self) -> None:
        processor = replace(self._wiring.processor(), validated=self.metrics.validated)
        admin = self._wiring.admin()
        if self._ran or not self._ownership.taken:
            self._wiring.require_position_known(admin, ran=self._ran)
        self._wiring.ensure_offsets(admin)
        if self._ownership.taken:
            self._step_aside()
        if not self._ownership.taken and not self._take_over():
            return
        state = StoredState(self._wiring.kafka)
        publisher = self._wiring.publisher(
            admin,
            self._wakeup,
            self._dead_lettered,
            require_owned=self._ownership.require_held,
            stored=state,
            recorder=self.metrics,
        )
        source = self._wiring.source(self._wakeup, lambda: state.rewind.until if state.rewind else None)
        parking = self._wiring.parking(admin)
        sequences = self._wiring.sequences(admin)
        marker = self._wiring.marker(publisher, self._log_marks_error)
        pipeline = PipelineLoop(
            source,
            publisher,
            processor,
            wakeup=self._wakeup,
            stopping=self._stopped.is_set,
            parking=parking,
            ready=lambda processor: self._ready(
                processor, publisher, on_current_timeline(state.rewind, source), sequences, parks=parking is not None
            ),
            hurry=marker.waits if marker is not None else lambda: False,
            recorder=self.metrics,
        )
        books = self._wiring.position_recorder(admin, publisher, source, self._log_history_error)

        stored: list[Position | None] = []

        def started(position: Position) -> None:
            adopts = self._wiring.database.adopt
            if marker is not None and adopts:
                marker.store_baseline(position)
            stored.append(publisher.stored)
            self._started(position)
            books.start()
            if marker is not None:
                marker.start(position if adopts else stored[0])

        self.stored = lambda: publisher.stored
        try:
            pipeline.run(started=started)
        except Unavailable as error:
            if not isinstance(error, KafkaUnavailable | RecordsRefused | TopicLimitsChanged):
                self._step_aside()
            raise
        finally:
            self.metrics.ended()
            if marker is not None:
                marker.close()
            books.close()
            last = publisher.stored
            self.stored = lambda: last  # without the publisher, which must be freed
            self._progressed = bool(stored) and publisher.stored is not stored[0]
            if stored:
                self._log.info("published", events=publisher.published, dead_letters=publisher.dead_letters)

    def _take_over(self) -> bool:
        """Waits until nobody else runs the pipeline, then takes ownership; returns False if stopped."""
        if not self._standby.wait():
            return False
        self._recovery.failed_before(self._standby.earlier_failure)
        self._on_state("STARTING", None)
        self._take_ownership()
        return True

    def _take_ownership(self) -> None:
        # Transactions fence this instance if another one takes over; without them it must check itself.
        watch = None if self._wiring.kafka.exactly_once else self._standby.watch
        try:
            self._ownership.take(watch)
        finally:
            if self._ownership.taken:
                self._standby.end(keep_watch=watch is not None)

    def _unless_replaced(self, error: TailraceError) -> TailraceError | None:
        """Returns another error, or None for a new start, if a source error may be the work of another instance.

        An instance that is suspended while it opens the source may find a slot that another one has created or moved.
        """
        if not isinstance(error, SourceError) or error.action is Action.RETRY or not self._ownership.taken:
            return error
        try:
            self._step_aside()
            found = offsets.read(self._wiring.kafka) if self._ownership.taken else None
            if found is not None and found != self.stored():
                return OutcomeUnknown(
                    error.what,
                    why="Another instance has stored a position since this one has read it.",
                    remedy="Tailrace reads the position again, by itself.",
                )
        except Fenced as fenced:
            return fenced
        except TailraceError as unknown:
            # Whose work it is must be certain before the pipeline fails for good.
            return unknown if unknown.action is Action.RETRY else error
        return error if self._ownership.taken else None

    def _recovered_or(self, error: TailraceError) -> TailraceError | None:
        """Tries a recovery; returns None if it succeeded, else the error to handle.

        There is one recovery per run: if the pipeline does not run afterwards, another one would not help.
        """
        if self._recover is None or self._recovered or error.action is not Action.HALT or isinstance(error, Fenced):
            return error
        try:
            if not self._ownership.taken:
                # Ownership without a position would make a lost position look like an interrupted first start.
                if self._standby.is_in_use(wait=True) or not self._standby.has_position():
                    return error
                self._take_ownership()
            if not self._recover(error, self._wiring, self._wakeup, self._stopped.is_set):
                return error
        except TailraceError as failure:
            return failure
        self._recovered = True
        self._recovery.log_recovered()
        return None

    def _step_aside(self) -> None:
        """Raises Fenced if another instance has taken ownership: only a first start takes over, a retry does not.

        If that instance has ended, this one starts again as a first start, so that others see that it runs.
        """
        if self._ownership.lost():
            raise Fenced(
                "another instance of this pipeline was started after this one",
                why="The instance that started last runs the pipeline.",
                remedy="If it runs, nothing is to do. Otherwise start this one again.",
            )
        if not self._ownership.is_last:
            self._ownership.withdraw()

    def _still_ours(self, error: TailraceError) -> bool:
        """Whether this instance still owns the pipeline, although a retry of an older one has fenced it."""
        try:
            return isinstance(error, Fenced) and not self._ownership.lost()
        except TailraceError:
            return True  # the next attempt finds out

    def _started(self, position: Position) -> None:
        # `--adopt` applies to what was found at this start, not to later ones.
        self._wiring = self._wiring.adopted()
        self._ran = True
        self._recovered = False
        self._kafka_away = False
        self._ownership.start_heartbeat()
        self._outage.end()
        self._log.info("running", position=str(position), delivery=self._wiring.settings.kafka.delivery)
        self._announce("RUNNING")
        self.metrics.started(position)
        self._on_state("RUNNING", None)
        if recovered := self._recovery.started(time.monotonic()):
            self.notify(RECOVERY, recovered)

    def _pause(self, error: TailraceError, attempt: int) -> bool:
        """Waits before the next attempt. Returns True if the server is available again and the wait ended early."""
        by_settings = self._wiring.backoff.delay(attempt, **self._chance)
        seconds = error.seconds if isinstance(error, RecordDelayed) else by_settings
        self._log.warning(
            "waiting",
            error=error.code,
            what=error.what,
            why=error.why,
            remedy=error.remedy,
            retry_in=round(seconds, 1),
            attempt=attempt,
        )
        self._kafka_away = isinstance(error, KafkaUnavailable | TokenUnavailable)
        self._ownership.stop_heartbeat()
        self._recovery.interrupted(error.code, time.monotonic())
        self.metrics.retrying(seconds)
        self._on_state("RETRYING", error)
        self._announce("RETRYING", error)
        return self._outage.wait(seconds, self._stopped, self._wiring.probe(error))

    def _fail(self, error: TailraceError) -> None:
        self.failure = error
        self._log.error("failed", error=error.code, what=error.what, why=error.why, remedy=error.remedy)
        self._on_state("FAILED", error)
        # After fencing, only the other instance may announce states.
        if not isinstance(error, Fenced):
            self._announce("FAILED", error)
            self._ownership.release()

    def stalled(self, error: PipelineStalled) -> None:
        """Reports that the pipeline makes no progress; the process must end at once. For another thread.

        The threads of the pipeline may be blocked, so this one announces the state for them.
        """
        self.notify(STALL, error.what, why=error.why, remedy=error.remedy)
        self._fail(error)
        if self._alerts is not None:
            self._alerts.close(ALERT_SECONDS)

    def _dead_lettered(self, reason: str, type_name: str, count: int) -> None:
        self.metrics.dead_lettered(reason, count)
        if self._alerts is not None:
            self._alerts.dead_lettered(reason, type_name, count)

    def _log_history_error(self, error: TailraceError) -> None:
        self._log.warning("position history", error=error.code, what=error.what, why=error.why, remedy=error.remedy)

    def _log_marks_error(self, error: TailraceError) -> None:
        log = self._log.of("tailrace.marks")
        log.warning("marks", error=error.code, what=error.what, why=error.why, remedy=error.remedy)

    def _announce(self, state: str, error: TailraceError | None = None) -> None:
        # While another instance runs the pipeline, this one announces its own state separately.
        separately = not self._ownership.taken and state != "STOPPED" and self._standby.is_in_use(wait=True)
        if not (self._standby.announce(state, error) if separately else announce(self._wiring.kafka, state, error)):
            self._log.debug("state not announced", state=state)
