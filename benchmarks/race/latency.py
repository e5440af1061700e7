"""The latency: from a commit to a `read_committed` consumer, at fixed rates of single-event transactions.

Writers commit by a schedule, however slow the contender is. An event names the time of its transaction, taken just
before the commit, and the consumer runs on the same machine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Sequence
from subprocess import DEVNULL
from typing import NamedTuple

from benchmarks.race.arrivals import Topics, event_id
from benchmarks.race.contenders import CONTENDERS, Contender
from benchmarks.race.measure import Race, prepared
from benchmarks.race.rows import Row, rows

RATES = (100, 1000, 5000)
WARM_UP = 1000
"""A rate that is written before the others and not counted: both JVMs compile what they run often."""
SECONDS = 20
QUIET_SECONDS = 3
"""No event for so long after the end of the writers: all have arrived."""
FEWEST = 20


class Sample(NamedTuple):
    """When an event was committed and when it was consumed, in ms since 1970."""

    committed: float
    consumed: float


def latency(race: Race) -> list[Row]:
    """Measures each contender at each rate, on an outbox of its own: nothing waits in it."""
    found: list[Row] = []
    for outbox_class in race.outboxes():
        for contender_class in CONTENDERS:
            outbox = outbox_class(race.stack, f"latency_{contender_class.SHORT}")
            with prepared(race, [outbox], [contender_class]) as (contender,):
                contender.start()
                race.progress(f"{outbox.DATABASE}, {contender.NAME}: {SECONDS} s at each of {RATES} transactions/s")
                _consume(race, contender, WARM_UP)
                for rate in RATES:
                    found += rows(
                        outbox.DATABASE, case(rate), contender.NAME, **summary(_consume(race, contender, rate))
                    )
    return found


def case(rate: int) -> str:
    return f"{rate:,} transactions/s"


def _consume(race: Race, contender: Contender, rate: int) -> list[Sample]:
    """Consumes while writers write, until nothing comes any more."""
    outbox = contender.pipelines[0].outbox
    seen: list[tuple[float, bytes]] = []
    with Topics(contender.stack.kafka.bootstrap, contender.topics) as topics:
        topics.resume()
        writers = [
            subprocess.Popen(each, stdout=DEVNULL, stderr=DEVNULL)
            for each in outbox.writers(race.folder, rate, SECONDS)
        ]
        try:
            last = time.monotonic()
            while time.monotonic() - last < QUIET_SECONDS or any(each.poll() is None for each in writers):
                message = topics.poll()
                if message is not None and event_id(message) not in outbox.firsts:
                    seen.append((time.time() * 1000, message.value() or b""))
                    last = time.monotonic()
                elif message is None:
                    contender.check()
        finally:
            for each in writers:
                each.kill()
                each.wait()
    return [Sample(stamp_of(value), consumed) for consumed, value in seen]


def stamp_of(value: bytes) -> float:
    """Returns the time of the transaction that the note of an event names."""
    return float(json.loads(value)["note"])


def summary(samples: Sequence[Sample]) -> dict[str, float]:
    """Returns percentiles of the latency and the rate of the commits, without the first quarter of the events."""
    counted = sorted(samples)[len(samples) // 4 :]
    if len(counted) < FEWEST:
        raise SystemExit(f"only {len(counted)} events arrived: too few for a latency")
    cuts = statistics.quantiles([each.consumed - each.committed for each in counted], n=100)
    seconds = (counted[-1].committed - counted[0].committed) / 1000
    return {"p50_ms": cuts[49], "p99_ms": cuts[98], "rate": (len(counted) - 1) / max(0.001, seconds)}
