"""What the phases share: the servers, contenders prepared for outboxes, and the measurement of one drain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.race.arrivals import Arrivals, Topics
from benchmarks.race.contenders import Contender
from benchmarks.race.outboxes import OUTBOXES, Outbox, OutboxClass
from benchmarks.race.rows import Row, rows
from benchmarks.race.usage import cpu_seconds
from tailrace.testkit.stack import Stack, wait_until
from tailrace.testkit.stack.paths import Progress


@dataclass(frozen=True, slots=True)
class Race:
    """What the phases share."""

    stack: Stack
    folder: Path
    events: int
    databases: Sequence[str]
    progress: Progress

    def outboxes(self) -> Iterator[OutboxClass]:
        return (each for each in OUTBOXES if each.DATABASE in self.databases)


@dataclass(frozen=True, slots=True)
class Measured:
    """A drain: what arrived and when, and the seconds of CPU that it took."""

    arrivals: Arrivals
    began: float
    cpu: float
    source_cpu: float
    broker_cpu: float
    peak_mb: float

    def rows(self, database: str, case: str, contender: str) -> list[Row]:
        per_event = 1e6 / len(self.arrivals.times)
        return rows(
            database,
            case,
            contender,
            events_per_s=self.arrivals.rate(self.began),
            warm_events_per_s=self.arrivals.warm_rate,
            cpu_us_per_event=self.cpu * per_event,
            source_cpu_us_per_event=self.source_cpu * per_event,
            broker_cpu_us_per_event=self.broker_cpu * per_event,
            peak_mb=self.peak_mb,
            duplicates=self.arrivals.duplicates,
        )


@contextmanager
def prepared(race: Race, outboxes: Sequence[Outbox], classes: Sequence[type[Contender]]) -> Iterator[list[Contender]]:
    """Prepares contenders for the same outboxes; stops what still runs, and drops the outboxes."""
    race.progress(f"preparing {', '.join(each.NAME for each in classes)}")
    contenders = [each(race.stack, race.folder, outboxes) for each in classes]
    try:
        for contender in contenders:
            contender.prepare()
        yield contenders
    finally:
        for contender in contenders:
            contender.stop()
        for outbox in outboxes:
            outbox.drop()


def measure(contender: Contender, events: int) -> Measured:
    """Runs a contender until all events have arrived: each once, unless it only promises at least once."""
    kafka = contender.stack.kafka
    outboxes = [each.outbox for each in contender.pipelines]
    source = outboxes[0].source_cpu
    wait_until(lambda: not any(each.is_read() for each in outboxes), 60, what="the end of the reader before")
    with Topics(kafka.bootstrap, contender.topics) as topics:
        source_cpu, broker_cpu = source(), cpu_seconds([kafka.pid])
        contender.start()
        try:
            began, cpu = contender.begun()
            topics.wait_for(events, contender.check)
            used = (contender.cpu - cpu, source() - source_cpu, cpu_seconds([kafka.pid]) - broker_cpu)
            peak_mb = contender.peak_mb
            arrivals = topics.read(events, contender.ignored)
        finally:
            contender.stop()
    if arrivals.duplicates and contender.EXACTLY_ONCE:
        raise SystemExit(f"{contender.NAME}: {arrivals.duplicates:,} events came twice")
    return Measured(arrivals, began, *used, peak_mb)
