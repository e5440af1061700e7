"""The generated page docs/faults.md: the fault matrix with the results of `make faults`."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from tools import soak_picture
from tools.fault_matrix import NOT_RUN, RowResult, load, stored

HEAD = """# Faults

<!-- Written by `make docs` from tests/faults/matrix.yaml and benchmarks/results/faults.json. Do not edit. -->

What can go wrong, and what Tailrace does then. Each row is a fault that tests inject into real servers and processes;
an oracle then compares what services committed with what consumers see: nothing lost, doubled, reordered or invented
([guarantees.md](guarantees.md) has the invariants I1 to I12).

```
make faults               # all rows: prints this table and stores it
make faults ROWS=44,45    # some rows
```

`make test` runs the faster half of these tests, `make test-slow` the rest, except row 70. Rounds are the test cases of
a row (a test that kills at every failpoint is one round for each); a test may count in several rows. Results are those
of the last complete run.
"""

CHAOS_RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "chaos.json"
CHAOS = """
## Chaos

```
make chaos MINUTES=30             # draws a seed and prints it
make chaos MINUTES=30 SEED=2026   # the same schedule again
```

Random faults of the matrix over a Postgres and a MongoDB pipeline and their projections in both stores, at once:
processes are killed, suspended, stopped and started twice; servers are killed, shut down and suspended; links are cut,
refused, silent in one or both directions, and slow; meanwhile payloads are bad, columns are added, topics get lower
limits and more partitions, rows are deleted and truncated, dead letters are redriven and events replayed. Each fault
asserts that it happened. After every minute of faults everything must recover: the oracle compares all events of both
pipelines, and both projections with the fold of their topics.

Every choice comes from the seed, and the schedule (what, when, on whom) is printed first and stored with the result.
The same seed gives the same schedule; what the processes do at that moment depends on the machine.

A known limit: on a machine that was busy with other tests, librdkafka once ended a connector with an assertion of its
own (`rdkafka_txnmgr.c`, SIGABRT). Such a process must be started again, as a worker or a service manager does.
"""
SOAK = """
## Soak

`make soak HOURS=2` runs a steady load on both databases, samples memory, open files, threads, lag, the WAL that the
slot keeps and the connectors' own logs, and compares the slope of each after a warm-up with a bound.
In less than an hour, a steeper slope shows nothing yet unless the growth exceeds the bound of an hour.
"""


def page() -> str:
    results = stored()
    parts = [HEAD]
    for group, rows in groupby(load(), key=lambda row: row.group):
        parts.append(f"\n## {group}\n\n| row | fault | what must happen | rounds | verdict |\n|---|---|---|---|---|\n")
        for row in rows:
            result = results.get(row.row, RowResult(row.row, 0, NOT_RUN, 0.0))
            verdict = f"not here: {row.not_here}" if row.not_here else result.verdict
            parts.append(f"| {row.row} | {row.fault} | {row.expected} | {result.rounds or ''} | {verdict} |\n")
    return "".join([*parts, CHAOS, *_chaos(), SOAK, *_soak()])


def _chaos() -> list[str]:
    """Returns the last stored run in words."""
    if not CHAOS_RESULT.exists():
        return []
    run: dict[str, Any] = json.loads(CHAOS_RESULT.read_text(encoding="utf-8"))
    verdict = "passed" if run["passed"] else "FAILED"
    lines = [
        f"\nThe last stored run {verdict}: seed {run['seed']}, {run['seconds'] / 60:.0f} minutes, "
        f"{run['faults_injected']} of {len(run['schedule'])} planned faults (the machine was busy\nif these differ), "
        f"{run['events_compared']:,} events compared.\n\n| fault | on | times |\n|---|---|---|\n"
    ]
    for name, count in sorted(run["faults"].items()):
        kind, _, target = name.removesuffix(")").partition(" (")
        lines.append(f"| {kind} | {target} | {count} |\n")
    return lines


def _soak() -> list[str]:
    run = soak_picture.stored()
    if run is None:
        return []
    reached = " and ".join(f"{rate:,.0f}" for rate in run["rate"].values())
    complete = "as many read as written" if run["complete"] else "NOT as many read as written"
    lines = [
        f"\nThe last stored run took {run['hours'] * 60:.0f} minutes ({run['at'][:10]}), with {run['asked_rate']:,.0f} "
        f"events/s on each database asked for, and\n{reached} reached on Postgres and MongoDB: "
        f"{sum(run['consumed'].values()):,} events, {complete}.\n\n![what was sampled](soak.svg)\n\n"
        "| value | median | highest | growth in an hour | bound | |\n|---|---|---|---|---|---|\n"
    ]
    for name, found in run["verdicts"].items():
        cells = (
            f"{found['median']:.1f}",
            f"{found['highest']:.1f}",
            f"{found['per_hour']:+.1f}",
            f"{found['bound']:g}",
        )
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} | {found['verdict']} |\n")
    return lines
