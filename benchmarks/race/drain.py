"""The drain: every contender publishes the same backlog, in turns with the bare reader of the database's log."""

from __future__ import annotations

from benchmarks.backlog import Shape
from benchmarks.race.contenders import CONTENDERS
from benchmarks.race.measure import Race, measure, prepared
from benchmarks.race.rows import Row, rows


def drain(race: Race) -> list[Row]:
    """Drains a backlog of each shape in each database."""
    shapes = (Shape("100 a transaction", race.events // 100, 100), Shape("1 a transaction", race.events, 1))
    found: list[Row] = []
    for outbox_class in race.outboxes():
        for shape in shapes:
            outbox = outbox_class(race.stack, f"drain_{shape.events}")
            with prepared(race, [outbox], CONTENDERS) as contenders:
                outbox.prepare_bare()
                race.progress(f"{outbox.DATABASE}, {shape.name}: writing {shape.total:,} events")
                outbox.fill(shape)
                race.progress(f"{outbox.DATABASE}, {shape.name}: {outbox.BARE}")
                bare = outbox.bare(shape.total)
                cpu = bare.cpu_seconds * 1e6 / shape.total
                found += rows(outbox.DATABASE, shape.name, outbox.BARE, events_per_s=bare.rate, cpu_us_per_event=cpu)
                for contender in contenders:
                    race.progress(f"{outbox.DATABASE}, {shape.name}: {contender.NAME}")
                    measured = measure(contender, shape.total)
                    found += measured.rows(outbox.DATABASE, shape.name, contender.NAME)
    return found
