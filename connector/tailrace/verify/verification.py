"""Runs one verification, from reading the outbox to the result.

The outbox is read first, then the topics up to their ends after that, so everything that the pipeline had published of
those rows is found. Meanwhile worker processes already read the topics up to their earlier ends. Rows that were not
found are searched for once more after the pipeline has had time to pass the moment at which the outbox was read. Only
then is a row reported as missing. If the pipeline does not get there (it lags or is stopped), the row counts as not yet
published.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tailrace.check.health import KafkaStatus, read_kafka_status
from tailrace.config.model import PipelineSettings
from tailrace.errors import ConfigError
from tailrace.event import Row
from tailrace.kafka.client import producer_config
from tailrace.pipeline.processor import EventProcessor
from tailrace.positions.base import Position, first_read_of, is_streaming, knows_start
from tailrace.positions.first_read import FirstRead
from tailrace.routing.partition import PARTITIONERS
from tailrace.sources.mongo.options import MongoOptions
from tailrace.verify.backend import (
    AbsenceContext,
    OutboxReader,
    Window,
    no_start,
    nowhere,
)
from tailrace.verify.findings import AHEAD, Findings, RecordDefect
from tailrace.verify.fingerprints import Fingerprinter
from tailrace.verify.kafka_records import KafkaRecords
from tailrace.verify.outbox_rows import Rows, event_name, may_go_by_kind
from tailrace.verify.placement import order_of
from tailrace.verify.postgres_outbox import PostgresOutboxReader
from tailrace.verify.purged import purged_by_retention
from tailrace.verify.retention import Horizon
from tailrace.verify.spill import SpillFile
from tailrace.verify.topic_reader import ScanSettings, seldom_collected
from tailrace.verify.workers import WorkerPool
from tailrace.worker.options import column_map, own_topics
from tailrace.worker.pipeline_topics import KnownPipelines, read_known
from tailrace.worker.schemas import wire_format
from tailrace.worker.wiring import Wiring, wire

POLL_SECONDS = 0.5
MOST_JOBS = 4
"""More readers would mostly wait for Kafka."""
ENDED = ("STOPPED", "FAILED")
"""Announced states in which the pipeline publishes nothing more."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification. `topics` and `places` are indexed by the numbers in examples; `notes` are for
    people.
    """

    findings: Findings
    topics: list[str]
    places: list[tuple[str, int]]
    foreign: int
    position: Position | None
    passed: bool
    exactly_once: bool
    notes: list[str]
    keys_without_dead_letter: int = 0
    """Parked keys whose events wait behind a dead letter that is gone."""

    @property
    def differences(self) -> int:
        """The number of problems. Duplicates are allowed if delivery is at least once."""
        defects = self.findings.defects
        allowed = 0 if self.exactly_once else defects[RecordDefect.DUPLICATED]
        statuses = self.findings.statuses
        return statuses["missing"] + statuses["undecided"] + defects.total() - allowed + self.keys_without_dead_letter


def verify(settings: PipelineSettings, window: Window, *, wait_seconds: float, jobs: int = 1) -> Verification:
    """Compares the outbox with Kafka. Waits up to `wait_seconds` seconds for the pipeline if rows are absent.

    `jobs` is the number of processes, including this one.
    """
    # Start the workers first, because it takes a while.
    with WorkerPool(jobs - 1) as workers, SpillFile(6, file=workers.outbox) as spill, seldom_collected():
        wiring = wire(settings)
        _require_timed(wiring, window)
        processor, format = wiring.processor(with_rules=False), wire_format(settings)
        fingerprinter = Fingerprinter(processor, format)
        kind = "mongo" if isinstance(wiring.database, MongoOptions) else "postgres"
        workers.begin(ScanSettings(wiring.kafka, format, kind, window))
        kafka = KafkaRecords(wiring.kafka, fingerprinter, order_of(kind), window, spill, workers)
        known = read_known(wiring.kafka)
        stored = read_kafka_status(wiring.kafka).position
        outbox = open_outbox(wiring, window, first_read_of(stored), complete=is_streaming(stored))
        try:
            if jobs > 1:
                kafka.start(_own_topics(wiring, kafka, known), to_the_end=False)
            mapped = column_map(settings)
            plain = format.value == "json" and format.key == "bytes" and not format.has_metadata
            by_kind = mapped if plain and may_go_by_kind(wiring, mapped) else None
            Rows(processor, fingerprinter, kafka.number, spill).read(outbox, by_kind)
            if jobs > 1:
                kafka.finish()
            return _compare(wiring, outbox, kafka, _SpilledFacts(spill, workers), processor, wait_seconds, known)
        finally:
            outbox.close()


@dataclass(frozen=True, slots=True)
class _SpilledFacts:
    """All facts: those of the outbox in this process, those of the topics in the workers."""

    spill: SpillFile
    workers: WorkerPool

    def compare(self, context: AbsenceContext) -> Findings:
        return self.workers.compare(self.spill.pieces(), context)


def usual_jobs() -> int:
    """Returns the number of cores that this process may use, up to a limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_JOBS)


def open_outbox(
    wiring: Wiring, window: Window, first_read: FirstRead | None = None, *, complete: bool = True
) -> OutboxReader:
    """`first_read`: mark the rows that it has left out; `complete`: it has ended."""
    if isinstance(wiring.database, MongoOptions):
        from tailrace.verify.mongo_outbox import MongoOutboxReader  # optional driver

        return MongoOutboxReader(wiring.database, window, first_read)
    return PostgresOutboxReader(wiring.database, window, first_read, complete=complete)


def _compare(
    wiring: Wiring,
    outbox: OutboxReader,
    kafka: KafkaRecords,
    facts: _SpilledFacts,
    processor: EventProcessor,
    wait_seconds: float,
    known: KnownPipelines,
) -> Verification:
    status = read_kafka_status(wiring.kafka)
    wanted = _own_topics(wiring, kafka, known)
    kafka.read_all(lambda: wanted, to_the_end=False)
    passed = status.position is not None and outbox.is_passed(status.position)
    is_before = no_start if status.position is None else outbox.before_start(status.position)
    found = facts.compare(AbsenceContext(passed, is_before=is_before))
    if found.absent:
        status = _wait(wiring, outbox, wait_seconds)
        # In this order: what the pipeline has passed by now is found when the topics are read on.
        passed = status.position is not None and outbox.is_passed(status.position)
        behind = _beyond(outbox, status.position, processor, facts.spill)
        kafka.read_all(lambda: wanted, to_the_end=True)
        is_before = no_start if status.position is None else outbox.before_start(status.position)
        deleted = partial(_may_be_deleted, _horizons(wiring, kafka))
        context = AbsenceContext(passed, behind, deleted, known.is_complete, is_before)
        found = facts.compare(context)
        if kafka.is_bounded and found.statuses["missing"] + found.statuses["undecided"]:
            # Rows are selected by their own clock, which may be ahead of their commit by any time.
            kafka.read_earlier(wanted)
            found = facts.compare(context)
    found.include(facts.workers.check_order())
    return Verification(
        findings=found,
        topics=kafka.topics,
        places=kafka.places,
        foreign=kafka.foreign,
        position=status.position,
        passed=passed,
        exactly_once=wiring.kafka.exactly_once,
        notes=_notes(wiring, kafka, found, status, passed=passed),
        keys_without_dead_letter=len(kafka.letters.keys_without_dead_letter),
    )


def _beyond(
    outbox: OutboxReader, stored: Position | None, processor: EventProcessor, spill: SpillFile
) -> Callable[[int], bool]:
    if stored is None:
        return nowhere

    def ahead(row: Row) -> None:
        name = event_name(processor, row)
        spill.add(AHEAD, name, (name,))

    return outbox.beyond(stored, ahead)


def topics_of(wiring: Wiring, kafka: KafkaRecords, known: KnownPipelines) -> dict[str, int]:
    """Returns declared topics, topics that the template could have created, and those that today's rules (or earlier
    ones, as far as known) send rows to.
    """
    never = set(own_topics(wiring.kafka))
    return kafka.existing(known.matcher({*wiring.declared, *kafka.topics}, wiring.settings.topics.template, never))


def _own_topics(wiring: Wiring, kafka: KafkaRecords, known: KnownPipelines) -> dict[str, int]:
    """Leaves out topics that only other pipelines write to: records of earlier versions do not name their pipeline."""
    own = {*wiring.declared, *kafka.topics, *known.noted, *known.remembered.topics}
    left_out = known.of_others - own if known.noted else set()
    return {topic: count for topic, count in topics_of(wiring, kafka, known).items() if topic not in left_out}


def _wait(wiring: Wiring, outbox: OutboxReader, wait_seconds: float) -> KafkaStatus:
    """Waits until the pipeline has passed the rows, has ended, or the time is up."""
    deadline = time.monotonic() + wait_seconds
    while True:
        status = read_kafka_status(wiring.kafka)
        if status.position is None or outbox.is_passed(status.position) or status.announced.get("state") in ENDED:
            return status
        if time.monotonic() >= deadline:
            return status
        time.sleep(POLL_SECONDS)


def _horizons(wiring: Wiring, kafka: KafkaRecords) -> dict[int, Horizon]:
    """Returns the horizons of the topics by number."""
    # The keys of rows are known, but only Kafka's own partitioner can be applied here.
    as_it_is = wire_format(wiring.settings).key == "bytes"
    by_key = as_it_is and producer_config(wiring.kafka).get("partitioner") in PARTITIONERS
    known = {number: kafka.kept.get(topic) for number, topic in enumerate(kafka.topics)}
    return {number: kept.horizon(by_key=by_key) for number, kept in known.items() if kept is not None}


def _may_be_deleted(known: dict[int, Horizon], topic: int, key: bytes | None, created_ms: int) -> bool:
    """Returns False for an event that is not published, or whose topic does not exist."""
    horizon = known.get(topic)
    return horizon is not None and horizon.is_beyond(key, created_ms)


def _notes(wiring: Wiring, kafka: KafkaRecords, found: Findings, status: KafkaStatus, *, passed: bool) -> list[str]:
    notes: list[str] = []
    source = wiring.settings.source
    declared = dict.fromkeys([*wiring.declared, *kafka.topics])
    notes += [f"there is no topic {topic}" for topic in declared if topic not in kafka.kept]
    if found.statuses["undecided"]:
        notes.append("the history of topics that the pipeline has written to is not known: if "
                     "topics.template was different before, rows may be on other topics; exclude them "
                     "with --from")  # fmt: skip
    if status.position is None:
        notes.append("the pipeline has no stored position: it was never started, or its offsets topic is lost")
    elif found.statuses["not_yet"] and not passed:
        notes.append(f"the pipeline is at {status.position} and has not reached the point where the outbox "
                     "was read; verify again when it has")  # fmt: skip
    notes += [note for note in (keys_without_dead_letter_note(kafka),) if note]
    if found.only_on_kafka and (purged := purged_by_retention(wiring.database)):
        notes.append(f"{purged:,} rows were deleted by retention: their records are only on Kafka")
    timed = wiring.database.timestamp is not None
    for topic, kept in kafka.kept.items():
        if topic in kafka.compacted:
            notes.append(f"{topic} is compacted: it does not keep every event of a key")
        elif kept.firsts:
            notes.append(f"{topic} has deleted its first records{'' if timed else ', which may explain missing rows'}")
            if timed and kept.is_unexplained and found.statuses["missing"]:
                notes.append(f"a row younger than retention.ms of {topic} counts as missing even if a "
                             "person or an earlier retention deleted its record; exclude such rows with "
                             "--from")  # fmt: skip
    if found.statuses["missing"] and source.start != "beginning":
        known = "a row that was changed since then counts as new; " if knows_start(status.position) else ""
        notes.append("source.start is `now`: rows from before the pipeline's first start are not "
                     f"published; {known}exclude them with --from")  # fmt: skip
    if found.statuses["missing"] and first_read_of(status.position) is not None:
        notes.append("the first read was limited by source.start_where: a row that it left out, and that was changed "
                     "since, counts as missing if it has no time of creation; exclude it with --from")  # fmt: skip
    return notes


def keys_without_dead_letter_note(kafka: KafkaRecords) -> str:
    """Returns a note about parked keys without a dead letter; empty if there are none."""
    if not (lost := len(kafka.letters.keys_without_dead_letter)):
        return ""
    return (
        f"{lost:,} parked keys wait behind a dead letter that is gone; list them with `tailrace dlq parked` and "
        "release them with `tailrace dlq discard FILE --parked-key KEY`"
    )


def _require_timed(wiring: Wiring, window: Window) -> None:
    if window.since_ms is not None and window.until_ms is not None and window.since_ms >= window.until_ms:
        raise ConfigError("--from is not before --to", remedy="Give an earlier --from, or a later --to.")
    if window != (None, None) and wiring.database.timestamp is None:
        raise ConfigError(
            "--from and --to cannot be applied: the outbox has no column with the time of a row",
            why="A table does not store the time of a commit, so a column with the time of creation is needed.",
            remedy="Name such a column in outbox.columns.timestamp, or omit --from and --to.",
        )
