"""Runs the tests of the fault matrix and prints a verdict for each row: `make faults`.

`make faults ROWS=44,45` runs some rows. A run of all rows stores its results, which docs/faults.md shows.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tools.fault_matrix import (
    NOT_HERE,
    PASSED,
    PASSED_AGAIN,
    ROOT,
    CaseResult,
    FaultRow,
    RowResult,
    cases,
    judge,
    load,
    store,
    with_second_run,
)

STYLES = {PASSED: "green", PASSED_AGAIN: "yellow", NOT_HERE: "dim"}
LIBRARIES = ("confluent-kafka", "psycopg", "pymongo", "faust-streaming")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rows", default="", help="numbers of rows, such as 44,45; all if empty")
    parser.add_argument("--jobs", default="10", help="test processes at a time")
    given = parser.parse_args(arguments)
    matrix = load()
    if given.rows:
        numbers = {int(number) for number in given.rows.split(",")}
        if unknown := numbers - {row.row for row in matrix}:
            parser.error(f"no such rows: {', '.join(map(str, sorted(unknown)))}")
        matrix = [row for row in matrix if row.row in numbers]
    results = run(matrix, given.jobs)
    show(matrix, results)
    if not given.rows:
        store(results, {name: version(name) for name in LIBRARIES} | {"python": platform.python_version()})
    return int(any(result.verdict not in STYLES for result in results))


def run(matrix: list[FaultRow], jobs: str) -> list[RowResult]:
    """Runs the tests of these rows and judges each row. What failed is run again, one at a time: many servers on few
    cores miss deadlines. A row that needed it says so.
    """
    tests = sorted({test for row in matrix for test in row.tests})
    if not tests:
        return [judge(row, []) for row in matrix]
    parallel = ["-n", jobs, "--dist", "loadfile", "--no-loadscope-reorder"]
    found = run_tests([*parallel, *tests])
    if not found:
        raise SystemExit("no test ran: see the errors above. Nothing was stored.")
    if failed := sorted({case.test for case in found if case.outcome == "failed"}):
        Console().print(f"again, one at a time: {', '.join(failed)}")
        found = with_second_run(found, run_tests(failed))
    return [judge(row, found) for row in matrix]


def run_tests(arguments: list[str]) -> list[CaseResult]:
    """Runs pytest. Failures are in its report, so the exit code does not matter."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments], cwd=ROOT, check=False
        )
        return list(cases(report)) if report.exists() else []


def show(matrix: list[FaultRow], results: list[RowResult]) -> None:
    table = Table("row", "fault", "rounds", "verdict", "seconds")
    for row, result in zip(matrix, results, strict=True):
        style = STYLES.get(result.verdict, "bold red")
        verdict = f"{NOT_HERE}: {row.not_here}" if row.not_here else result.verdict
        cells = (str(row.row), row.fault, str(result.rounds), f"[{style}]{verdict}[/]", f"{result.seconds:.0f}")
        table.add_row(*cells)
    console = Console()
    console.print(table)
    passed = sum(result.verdict in (PASSED, PASSED_AGAIN) for result in results)
    console.print(f"{passed} of {len(results)} rows passed, {sum(result.rounds for result in results)} rounds")


if __name__ == "__main__":
    sys.exit(main())
