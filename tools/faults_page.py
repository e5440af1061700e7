"""The generated page docs/faults.md: the fault matrix with the results of `make faults`."""

from __future__ import annotations

from itertools import groupby

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

`make test` runs the faster half of these tests, `make test-slow` the rest. Rounds are the test cases of a row (a test
that kills at every failpoint is one round for each); a test may count in several rows. Results are those of the last
complete run.
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
    return "".join(parts)
