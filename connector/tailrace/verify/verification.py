"""One verification, from the outbox to the verdict.

The outbox is read, then the topics to the ends that they have after that: whatever the pipeline had published of those
rows is then seen. Other processes begin with the topics meanwhile, up to the ends of before, and go on from there: that
takes less time, and shows no less. What is not there is looked for once more, after the pipeline has had time to pass
the moment at which the outbox was read: only then is a row called missing. A pipeline that does not get there (it lags,
or is stopped) has not published it yet, as far as can be told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tailrace.check.health import KafkaStatus, read_kafka_status
from tailrace.config.model import PipelineSettings
from tailrace.errors import ConfigError, Rejected
from tailrace.event import Row
from tailrace.kafka.client import producer_config
from tailrace.pipeline.processor import EventProcessor
from tailrace.positions.base import Position, knows_start
from tailrace.routing.partition import PARTITIONERS
from tailrace.sources.mongo.options import MongoOptions
from tailrace.verify.backend import OutboxReader, Window
from tailrace.verify.compare import AHEAD, AbsenceContext, Findings, RecordDefect, no_start, nowhere
from tailrace.verify.kafka_records import KafkaRecords
from tailrace.verify.outbox_rows import Rows, may_go_by_kind
from tailrace.verify.outbox_rows import unreadable_name as unreadable_name  # noqa: PLC0414 - known to others from here
from tailrace.verify.position_order import order_of
from tailrace.verify.postgres_outbox import PostgresOutboxReader
from tailrace.verify.retention import Horizon
from tailrace.verify.spill import SpillFile
from tailrace.verify.topic_reader import ScanSettings, seldom_collected
from tailrace.verify.value_fingerprint import Fingerprints
from tailrace.verify.workers import WorkerPool
from tailrace.worker.pipeline_topics import KnownPipelines, read_known
from tailrace.worker.schemas import wire_format
from tailrace.worker.wiring import Wiring, column_map, own_topics, wire

POLL_SECONDS = 0.5
MOST_JOBS = 4
"""More readers than that wait for Kafka more than they read."""
ENDED = ("STOPPED", "FAILED")
"""Announced states in which nothing more is to be expected."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found; numbers of topics and places in examples are indexes here. `notes` are for people."""

    findings: Findings
    topics: list[str]
    places: list[tuple[str, int]]
    foreign: int
    position: Position | None
    passed: bool
    exactly_once: bool
    notes: list[str]
    lost_fronts: int = 0
    """Parked keys whose events wait behind a dead letter that is gone."""

    @property
    def differences(self) -> int:
        """Of what must not be; a duplicate may be, where delivery is at least once."""
        flaws = self.findings.flaws
        allowed = 0 if self.exactly_once else flaws[RecordDefect.DUPLICATED]
        fates = self.findings.fates
        return fates["missing"] + fates["undecided"] + flaws.total() - allowed + self.lost_fronts


def verify(settings: PipelineSettings, window: Window, *, patience: float, jobs: int = 1) -> Verification:
    """Compares; waits for the pipeline at most `patience` seconds, and only if something is not there.

    `jobs` processes share the work, this one included.
    """
    # The crew first: it takes a while to come up.
    with WorkerPool(jobs - 1) as crew, SpillFile(6, file=crew.outbox) as spool, seldom_collected():
        wiring = wire(settings)
        _require_timed(wiring, window)
        processor, format = wiring.processor(), wire_format(settings)
        prints = Fingerprints(processor, format)
        kind = "mongo" if isinstance(wiring.database, MongoOptions) else "postgres"
        crew.begin(ScanSettings(wiring.kafka, format, kind, window))
        kafka = KafkaRecords(wiring.kafka, prints, order_of(kind), window, spool, crew)
        known = read_known(wiring.kafka)
        outbox = open_outbox(wiring, window)
        try:
            if jobs > 1:
                kafka.start(_own_topics(wiring, kafka, known), to_the_end=False)
            mapped = column_map(settings)
            plain = format.value == "json" and format.key == "bytes"
            by_kind = mapped if plain and may_go_by_kind(wiring, mapped) else None
            Rows(processor, prints, kafka.number, spool).read(outbox, by_kind)
            if jobs > 1:
                kafka.finish()
            return _compare(wiring, outbox, kafka, _SpilledFacts(spool, crew), processor, patience, known)
        finally:
            outbox.close()


@dataclass(frozen=True, slots=True)
class _SpilledFacts:
    """All that was read: of the outbox here, of the topics by the crew."""

    spool: SpillFile
    crew: WorkerPool

    def compare(self, ground: AbsenceContext) -> Findings:
        return self.crew.compare(self.spool.pieces(), ground)


def usual_jobs() -> int:
    """One for each core that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_JOBS)


def open_outbox(wiring: Wiring, window: Window) -> OutboxReader:
    if isinstance(wiring.database, MongoOptions):
        from tailrace.verify.mongo_outbox import MongoOutboxReader  # its driver is only there for those who need it

        return MongoOutboxReader(wiring.database, window)
    return PostgresOutboxReader(wiring.database, window)


def _compare(
    wiring: Wiring,
    outbox: OutboxReader,
    kafka: KafkaRecords,
    facts: _SpilledFacts,
    processor: EventProcessor,
    patience: float,
    known: KnownPipelines,
) -> Verification:
    news = read_kafka_status(wiring.kafka)
    wanted = _own_topics(wiring, kafka, known)
    _read_kafka(kafka, wanted, to_the_end=False)
    passed = news.position is not None and outbox.is_passed(news.position)
    is_before = no_start if news.position is None else outbox.before_start(news.position)
    found = facts.compare(AbsenceContext(passed, is_before=is_before))
    if found.absent:
        news = _wait(wiring, outbox, patience)
        # In this order: what the pipeline has passed by now is on the topics when these are read on.
        passed = news.position is not None and outbox.is_passed(news.position)
        behind = _beyond(outbox, news.position, processor, facts.spool)
        _read_kafka(kafka, wanted, to_the_end=True)
        is_before = no_start if news.position is None else outbox.before_start(news.position)
        deleted = partial(_may_be_deleted, _horizons(wiring, kafka))
        ground = AbsenceContext(passed, behind, deleted, known.is_complete, is_before)
        found = facts.compare(ground)
        if kafka.is_bounded and found.fates["missing"] + found.fates["undecided"]:
            # Rows are chosen by their own clock, which may be ahead of their commit by any time.
            kafka.read_earlier(wanted)
            found = facts.compare(ground)
    found.include(facts.crew.check_order())
    return Verification(
        findings=found,
        topics=kafka.topics,
        places=kafka.places,
        foreign=kafka.foreign,
        position=news.position,
        passed=passed,
        exactly_once=wiring.kafka.exactly_once,
        notes=_notes(wiring, kafka, found, news, passed=passed),
        lost_fronts=len(kafka.lost_fronts),
    )


def _beyond(
    outbox: OutboxReader, stored: Position | None, processor: EventProcessor, spool: SpillFile
) -> Callable[[int], bool]:
    if stored is None:
        return nowhere

    def ahead(row: Row) -> None:
        try:
            name = processor.layout.read(row).id
        except Rejected as rejected:
            name = unreadable_name(processor, row, rejected)
        spool.add(AHEAD, name, (name,))

    return outbox.beyond(stored, ahead)


def topics_of(wiring: Wiring, kafka: KafkaRecords, known: KnownPipelines) -> dict[str, int]:
    """Declared ones, those that a template could have made, and where today's rules send the rows that were read; under
    earlier rules, too, as far as they are known."""
    never = set(own_topics(wiring.kafka))
    return kafka.existing(known.matcher({*wiring.declared, *kafka.topics}, wiring.settings.topics.template, never))


def _own_topics(wiring: Wiring, kafka: KafkaRecords, known: KnownPipelines) -> dict[str, int]:
    """Without those that only other pipelines write to: records of earlier versions do not say whose they are."""
    own = {*wiring.declared, *kafka.topics, *known.noted, *known.remembered.topics}
    left_out = known.of_others - own if known.noted else set()
    return {topic: count for topic, count in topics_of(wiring, kafka, known).items() if topic not in left_out}


def _read_kafka(kafka: KafkaRecords, topics: dict[str, int], *, to_the_end: bool) -> None:
    # What waits is asked for first: released meanwhile, it is on its topic by then. The same holds for letters.
    kafka.read_waiting()
    kafka.read_letters()
    kafka.read(topics, to_the_end=to_the_end)


def _wait(wiring: Wiring, outbox: OutboxReader, patience: float) -> KafkaStatus:
    """Until the pipeline has passed what was read, has ended, or patience has."""
    deadline = time.monotonic() + patience
    while True:
        news = read_kafka_status(wiring.kafka)
        if news.position is None or outbox.is_passed(news.position) or news.announced.get("state") in ENDED:
            return news
        if time.monotonic() >= deadline:
            return news
        time.sleep(POLL_SECONDS)


def _horizons(wiring: Wiring, kafka: KafkaRecords) -> dict[int, Horizon]:
    """Of the topics, by their numbers."""
    # Keys are known as rows have them; only Kafka's own partitioner is known here.
    as_it_is = wire_format(wiring.settings).key == "bytes"
    by_key = as_it_is and producer_config(wiring.kafka).get("partitioner") in PARTITIONERS
    known = {number: kafka.kept.get(topic) for number, topic in enumerate(kafka.topics)}
    return {number: kept.horizon(by_key=by_key) for number, kept in known.items() if kept is not None}


def _may_be_deleted(known: dict[int, Horizon], topic: int, key: bytes | None, created_ms: int) -> bool:
    """Never for an event that goes nowhere, or to a topic that is not there."""
    horizon = known.get(topic)
    return horizon is not None and horizon.is_beyond(key, created_ms)


def _notes(wiring: Wiring, kafka: KafkaRecords, found: Findings, news: KafkaStatus, *, passed: bool) -> list[str]:
    notes: list[str] = []
    source = wiring.settings.source
    declared = dict.fromkeys([*wiring.declared, *kafka.topics])
    notes += [f"there is no topic {topic}" for topic in declared if topic not in kafka.kept]
    if found.fates["undecided"]:
        notes.append("no history tells which topics the pipeline has written to: if topics.template was another one, "
                     "rows may be there; leave them out with --from")  # fmt: skip
    if news.position is None:
        notes.append("the pipeline has no stored position: it was never started, or its offsets topic is lost")
    elif found.fates["not_yet"] and not passed:
        notes.append(f"the pipeline is at {news.position} and has not come as far as the outbox was read; run it again "
                     "when it has")  # fmt: skip
    notes += [note for note in (lost_fronts_note(kafka),) if note]
    timed = wiring.database.timestamp is not None
    for topic, kept in kafka.kept.items():
        if topic in kafka.compacted:
            notes.append(f"{topic} is compacted: it does not keep every event of a key")
        elif kept.firsts:
            notes.append(
                f"{topic} has deleted its first records{'' if timed else ': what is missing may have gone so'}"
            )
            if timed and kept.may_surprise and found.fates["missing"]:
                notes.append(f"a row that is younger than retention.ms of {topic} is missing also if a person, or an "
                             "earlier retention, deleted its record; leave such rows out with --from")  # fmt: skip
    if found.fates["missing"] and source.start != "beginning":
        known = "a row that was changed since counts as new; " if knows_start(news.position) else ""
        notes.append("source.start is `now`: rows from before the pipeline's first start are not published; "
                     f"{known}leave them out with --from")  # fmt: skip
    return notes


def lost_fronts_note(kafka: KafkaRecords) -> str:
    """Empty if every parked key has its letter."""
    if not (lost := len(kafka.lost_fronts)):
        return ""
    return (
        f"{lost:,} parked keys wait behind a dead letter that is gone; see `tailrace dlq parked`, and release them "
        "with `tailrace dlq discard FILE --parked-key KEY`"
    )


def _require_timed(wiring: Wiring, window: Window) -> None:
    if window.since_ms is not None and window.until_ms is not None and window.since_ms >= window.until_ms:
        raise ConfigError("--from is not before --to", remedy="Give an earlier --from, or a later --to.")
    if window != (None, None) and wiring.database.timestamp is None:
        raise ConfigError(
            "--from and --to cannot be applied: the outbox has no column with the time of a row",
            why="The time of a commit stands in Kafka, but in no table; its nearest is when the row was created.",
            remedy="Name such a column in outbox.columns.timestamp, or leave --from and --to out.",
        )
