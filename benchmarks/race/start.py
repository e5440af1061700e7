"""The start: how long after the start of its process a contender publishes an event that waits in the outbox."""

from __future__ import annotations

import time
from statistics import median

from benchmarks.race.arrivals import Topics
from benchmarks.race.contenders import CONTENDERS, Contender
from benchmarks.race.measure import Race, prepared
from benchmarks.race.rows import Row, rows

ROUNDS = 3
CASE = "process start to first event"


def start(race: Race) -> list[Row]:
    """Returns the median of some starts of each contender."""
    found: list[Row] = []
    for outbox_class in race.outboxes():
        outbox = outbox_class(race.stack, "start")
        with prepared(race, [outbox], CONTENDERS) as contenders:
            for contender in contenders:
                race.progress(f"{outbox.DATABASE}: starting {contender.NAME} {ROUNDS} times")
                seconds = median(_first_event(contender) for _ in range(ROUNDS))
                found += rows(outbox.DATABASE, CASE, contender.NAME, first_event_s=seconds)
    return found


def _first_event(contender: Contender) -> float:
    with Topics(contender.stack.kafka.bootstrap, contender.topics) as topics:
        event = contender.pipelines[0].outbox.first()
        began = time.time() * 1000
        contender.start()
        try:
            arrivals = topics.read(1, contender.ignored - {event})
        finally:
            contender.stop()
    return (arrivals.times[0] - began) / 1000
