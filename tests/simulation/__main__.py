"""`make simulate SEEDS=…` runs new seeds of every simulation; `SEED=… RUN=…` repeats one and prints its trace."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from simulation.mongo_run import MongoRun
from simulation.postgres_run import PostgresRun, zombie_run
from simulation.projection_run import ProjectionRun

RATE = 0.05
RUNS: dict[str, Callable[[object, bool], Any]] = {
    "postgres": lambda seed, trace: PostgresRun(seed, rate=RATE, trace=trace),
    "postgres-two": lambda seed, trace: PostgresRun(seed, rate=RATE, instances=2, trace=trace),
    "zombies": lambda seed, trace: zombie_run(seed, trace=trace),
    "mongo": lambda seed, trace: MongoRun(seed, rate=RATE, trace=trace),
    "mongo-two": lambda seed, trace: MongoRun(seed, rate=RATE, instances=2, trace=trace),
    "projection": lambda seed, trace: ProjectionRun(seed, rate=RATE, workers=2, trace=trace),
}


def main() -> int:
    chosen = os.environ.get("RUN") or ""
    names = [chosen] if chosen else list(RUNS)
    if seed := os.environ.get("SEED"):
        return max(_repeat(name, int(seed)) for name in names)
    first = int.from_bytes(os.urandom(4), "big")
    count = int(os.environ.get("SEEDS") or 300)
    failures = 0
    for name in names:
        began = time.monotonic()
        for number in range(first, first + count):
            try:
                RUNS[name](number, False).run()
            except (Exception, AssertionError) as error:  # noqa: BLE001 - printed with its seed
                failures += 1
                print(f"{name}: {type(error).__name__}: {error}\n  repeat it: make simulate RUN={name} SEED={number}")
        print(f"{name:13} {count} seeds from {first} in {time.monotonic() - began:.1f} s")
    return min(failures, 1)


def _repeat(name: str, seed: int) -> int:
    run = RUNS[name](seed, True)
    try:
        run.run()
    except (Exception, AssertionError) as error:  # noqa: BLE001 - printed
        print("\n".join(run.simulation.trace))
        print(f"{name} {seed}: {type(error).__name__}: {error}")
        return 1
    print("\n".join(run.simulation.trace))
    print(f"{name} {seed}: no invariant is broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
