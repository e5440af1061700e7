"""The growth: what a drain costs with larger events, larger transactions and more pipelines.

Tailrace runs at every step of a scale, Debezium with exactly-once at its ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.backlog import Shape
from benchmarks.race.contenders import DebeziumExactlyOnce, Tailrace
from benchmarks.race.measure import Race, measure, prepared
from benchmarks.race.outboxes import SMALL, OutboxClass, PostgresOutbox
from benchmarks.race.rows import Row

SIZES = (SMALL, 1_600, 20_000, 200_000)
TRANSACTIONS = (1, 100, 10_000, 1_000_000)
MONGO_TRANSACTIONS = TRANSACTIONS[:-1]
"""MongoDB aborts a transaction after a minute, and keeps it in its cache."""
PIPELINES = (1, 4, 12)
BYTES = 200_000_000
"""At most so much in the backlogs of larger events."""


class Step(NamedTuple):
    """A step of a scale: the backlog of each pipeline, and whether it is at an end of the scale."""

    shape: Shape
    size: int
    pipelines: int
    end: bool


def growth(race: Race) -> list[Row]:
    found: list[Row] = []
    for outbox_class in race.outboxes():
        for number, step in enumerate(steps(race.events, outbox_class)):
            found += _measured(race, outbox_class, number, step)
    return found


def steps(events: int, outbox_class: OutboxClass) -> Iterator[Step]:
    """Yields all steps; no transaction has more than five times as many events as a backlog of the drain."""
    half = events // 2
    for size in SIZES:
        count = min(half, BYTES // size)
        yield Step(_shape(f"{size:,} B an event", count, 100), size, 1, size in (SIZES[0], SIZES[-1]))
    possible = TRANSACTIONS if outbox_class is PostgresOutbox else MONGO_TRANSACTIONS
    scale = [each for each in possible if each <= 5 * events]
    for rows_of_one in scale:
        name = f"{rows_of_one:,} a transaction"
        yield Step(_shape(name, half, rows_of_one), SMALL, 1, rows_of_one in (scale[0], scale[-1]))
    for pipelines in PIPELINES:
        name = f"{pipelines} pipeline{'s' * (pipelines > 1)}"
        yield Step(_shape(name, half // pipelines, 100), SMALL, pipelines, pipelines in (PIPELINES[0], PIPELINES[-1]))


def _shape(name: str, events: int, rows_of_one: int) -> Shape:
    return Shape(name, max(1, events // rows_of_one), rows_of_one)


def _measured(race: Race, outbox_class: OutboxClass, number: int, step: Step) -> list[Row]:
    outboxes = [outbox_class(race.stack, f"growth_{number}_{each}", step.size) for each in range(step.pipelines)]
    classes = [Tailrace, DebeziumExactlyOnce] if step.end else [Tailrace]
    found: list[Row] = []
    with prepared(race, outboxes, classes) as contenders:
        race.progress(f"{outbox_class.DATABASE}, {step.shape.name}: {step.shape.total * step.pipelines:,} events")
        for outbox in outboxes:
            outbox.fill(step.shape)
        for contender in contenders:
            measured = measure(contender, step.shape.total * step.pipelines)
            found += measured.rows(outbox_class.DATABASE, step.shape.name, contender.NAME)
    return found
