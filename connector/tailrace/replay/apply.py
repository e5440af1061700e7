"""Applies a replay plan next to the running pipeline, with its own processor, loop and publisher.

The name of the plan is the transactional id and the key of its position on the offsets topic. So each batch and the
position behind it are one Kafka transaction: if it is killed, it continues there when it is run again; two runs fence
each other; and when the stored position is the end of the plan, it is done. The pipeline is never fenced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from tailrace.dlq import resolutions
from tailrace.errors import (
    ConfigError,
    Fenced,
    KafkaUnavailable,
    RecordsRefused,
    TopicLimitsChanged,
    TopicRefused,
    Unavailable,
)
from tailrace.event import Headers, Record, Row
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.publisher import Publisher
from tailrace.kafka.topic_manager import TopicManager
from tailrace.kafka.topics import topic_states
from tailrace.pipeline.loop import PipelineLoop
from tailrace.pipeline.processor import EventProcessor
from tailrace.positions.base import Position
from tailrace.replay.original_records import MOST, OriginalRecords
from tailrace.replay.plan import ReplayPlan
from tailrace.replay.plan_source import open_selected, share_done
from tailrace.replay.source_log import topics_of
from tailrace.replay.targets import UncompactedTopics, require_order, require_own, require_uncompacted
from tailrace.routing.specs import TopicSpec
from tailrace.state import offsets, position_history
from tailrace.state.rewind_marker import HEADER, SHADOW
from tailrace.state.stored_state import StoredState
from tailrace.wakeup import Wakeup
from tailrace.worker.earlier_dead_letters import EarlierDeadLetters
from tailrace.worker.wiring import Wiring

ATTEMPTS = 5
"""Attempts in a row while a server is not available."""
LOOK_SECONDS = 0.2
GLANCE_SECONDS = 5.0
LEAVE_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of this run; `share` is the part of the whole plan that is done, including earlier runs."""

    published: int
    dead_letters: int
    """Events that could not be published, including those that already had a dead letter."""
    already_dead_lettered: int
    """How many of them already had a dead letter, which was left unchanged."""
    share: float
    waiting: str = ""


class ReplayRun:
    """One run of a plan. `run` returns when it is done."""

    def __init__(self, wiring: Wiring, plan: ReplayPlan) -> None:
        require_same(wiring, plan)
        self._wiring = wiring
        self._plan = plan
        self.options = replay_options(wiring.kafka, plan)
        self._wakeup = Wakeup()
        self._stopped = threading.Event()
        self._left = threading.Event()
        self._original_records: OriginalRecords | None = None
        self._publisher: Publisher | None = None
        self._before = (0, 0)
        self._earlier = self._earlier_dead_letters()
        self._already_dead_lettered = 0
        self._position: Position = plan.start
        self.continued: bool | None = None
        """Whether an earlier run has done a part of the plan; None until that is known."""
        self._waiting = ""
        self._is_over = False

    def stored(self) -> Position | None:
        """Returns the stored position of the plan; None if it was never started or cannot be read yet.

        Does not fence a running replay.
        """
        offsets.ensure(self.options, self._wiring.admin())
        key = self.options.pipeline.encode()
        try:
            value = offsets.read_keys(self.options, {key}, timeout=GLANCE_SECONDS).get(key)
        except KafkaUnavailable:
            return None  # a killed run may have left a transaction open; `run` aborts it and reads the position itself
        return None if value is None else offsets.parse(self.options, value)

    def run(self, on_progress: Callable[[Progress], None]) -> Progress:
        """Runs the plan. `on_progress` is called regularly in this thread; an exception from it, such as Ctrl-C, ends
        the run.
        """
        plan, wiring = self._plan, self._wiring
        if plan.target == "same":
            require_order(wiring)
            require_uncompacted(wiring.admin(), plan.estimate.by_topic)
        elif plan.suffix and self.stored() is None:
            require_own(wiring, [topic + plan.suffix for topic in plan.estimate.by_topic], plan.id)
        failures: list[BaseException] = []
        threading.Thread(target=self._attempts, args=(failures,), name="replay", daemon=True).start()
        try:
            # Not `join`: if an exception interrupts it, Python up to 3.12 takes the thread for ended.
            while not self._left.wait(LOOK_SECONDS):
                on_progress(self.progress())
        finally:
            self._stopped.set()
            self._wakeup.set()
            self._left.wait(LEAVE_SECONDS)
        if failures:
            raise failures[0]
        return self.progress()

    def progress(self) -> Progress:
        published, letters = self._counts()
        share = share_done(self._position, self._plan.start, self._plan.end, self._plan.estimate.rows)
        known = self._already_dead_lettered + self._earlier.already_dead_lettered
        return Progress(published, letters, known, share, self._waiting)

    def _counts(self) -> tuple[int, int]:
        now = self._publisher
        published, letters = self._before
        return (published, letters) if now is None else (published + now.published, letters + now.dead_letters)

    def _attempts(self, failures: list[BaseException]) -> None:
        try:
            attempt = 0
            while not self._is_over:
                before = self._position
                try:
                    self._attempt()
                except RecordsRefused as refused:
                    if refused.reasons.keys() <= self._wiring.refused.keys():
                        raise TopicRefused(refused.what, why="; ".join(refused.reasons.values())) from None
                    self._wiring.refused.update(refused.reasons)
                except TopicLimitsChanged:
                    pass  # no need to wait
                except Unavailable as error:
                    attempt = 1 if self._position.progress > before.progress else attempt + 1
                    if attempt >= ATTEMPTS:
                        raise
                    self._waiting = f"{error.code}: {error.what}"
                    self._is_over = self._stopped.wait(self._wiring.backoff.delay(attempt))
        except Fenced as error:
            failures.append(
                Fenced(
                    error.what,
                    why="Another `apply` of this plan has started and continues with it.",
                    remedy="Let it finish. Nothing is published twice.",
                )
            )
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            failures.append(error)
        finally:
            if self._original_records is not None:
                self._original_records.close()
            self._left.set()

    def _attempt(self) -> None:
        plan, wiring = self._plan, self._wiring
        admin = wiring.admin()
        processor = wiring.processor()
        offsets.ensure(self.options, admin)
        self._before = self._counts()
        self._publisher = publisher = Publisher(
            self.options, self._keeper(admin), StoredState(self.options), wakeup=self._wakeup
        )
        source = open_selected(
            wiring,
            processor,
            id_=plan.id,
            origin=plan.origin,
            start=plan.start,
            end=plan.end,
            selection=plan.selection,
            wakeup=self._wakeup,
            named=self._positioner(processor),
        )

        def done() -> bool:
            stored = publisher.stored
            if self.continued is None:
                self.continued = stored is not None
            self._position = stored or plan.start
            self._waiting = ""
            self._is_over = self._stopped.is_set() or is_done(plan, stored)
            return self._is_over

        marked = replayed(processor, plan.id, suffix=plan.suffix)
        PipelineLoop(source, publisher, marked, wakeup=self._wakeup, stopping=done, ready=self._ready).run()
        self._earlier.finish()
        done()

    def _earlier_dead_letters(self) -> EarlierDeadLetters:
        return EarlierDeadLetters(self._wiring.kafka, self._plan.id, by_position=self._plan.origin == "log")

    def _ready(self, processor: EventProcessor) -> EventProcessor:
        """Reads existing dead letters after another `apply` of this plan was fenced. Shadow topics have their own."""
        self._already_dead_lettered += self._earlier.already_dead_lettered
        self._earlier = earlier = self._earlier_dead_letters()
        if self._plan.suffix or self._publisher is None or not earlier.read():
            return processor
        resolutions.ensure(self._wiring.kafka, self._wiring.admin())
        self._publisher.amend = earlier.amend
        return earlier.decorated(processor)

    def _positioner(self, processor: EventProcessor) -> Callable[[Row], Row]:
        """Returns a function that gives rows their original position. Rows of the log and of an archive have it; for
        rows of a table it is searched on the topics.
        """
        plan, wiring = self._plan, self._wiring
        if plan.origin != "table":
            return lambda row: row
        if self._original_records is None:
            self._original_records = OriginalRecords()
            if 0 < plan.estimate.events <= MOST:
                topics = topics_of(wiring, position_history.read(wiring.kafka))
                self._original_records.fill(wiring.kafka, topics, plan.estimate.first_ms)
        return self._original_records.positioner(processor.layout)

    def _keeper(self, admin: offsets.Admin) -> TopicManager:
        """Returns a topic manager. Shadow topics get the same number of partitions as the original, so keys go to the
        same ones.
        """
        plan, wiring = self._plan, self._wiring
        if not plan.suffix:
            return wiring.topic_manager(admin, UncompactedTopics)
        topics = [*plan.estimate.by_topic, wiring.kafka.dead_letter_topic]
        specs: dict[str, TopicSpec] = {}
        for topic, state in topic_states(admin, topics).items():
            declared = wiring.specs.get(topic)
            config = dict(declared.config) if declared else {}
            name = topic + plan.suffix
            specs[name] = TopicSpec(name, state.partitions, state.replication, config)
        given = wiring.settings.topics
        default = TopicSpec("", given.partitions, given.replication)
        return TopicManager(admin, specs, default, wiring.partitions, wiring.limits, create=given.create)


def replay_options(options: KafkaOptions, plan: ReplayPlan) -> KafkaOptions:
    """Always uses transactions, because otherwise a killed replay would publish twice."""
    letters = options.dead_letter_topic + plan.suffix
    return replace(options, pipeline=plan.name, exactly_once=True, dead_letter_topic=letters)


def require_same(wiring: Wiring, plan: ReplayPlan) -> None:
    """Refuses settings of another pipeline; the source checks the log itself."""
    if wiring.settings.pipeline != plan.pipeline:
        raise ConfigError(
            f"the plan belongs to the pipeline {plan.pipeline}, but the settings are of {wiring.settings.pipeline}",
            remedy="Give the settings of that pipeline with --settings. Nothing was changed.",
        )


def is_done(plan: ReplayPlan, stored: Position | None) -> bool:
    return stored is not None and stored.progress >= plan.end.progress


def replayed(processor: EventProcessor, replay_id: str, *, suffix: str = "") -> EventProcessor:
    """Returns the processor for a replay. It parks nothing: what cannot be published becomes a dead letter."""

    # The name of a shadow topic may also follow from the pipeline's own template; a header distinguishes them.
    added: Headers = [(HEADER, replay_id), *([(SHADOW, suffix)] if suffix else [])]

    def marked(made: Record, _: object) -> Record:
        return made._replace(topic=made.topic + suffix, headers=[*made.headers, *added])

    return processor.decorated(marked, marked, parks=False)
