"""The fault matrix (tests/faults/matrix.yaml), and what a run of its tests says about each row."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
MATRIX = ROOT / "tests" / "faults" / "matrix.yaml"
RESULTS = ROOT / "benchmarks" / "results" / "faults.json"
PASSED = "passed"
PASSED_AGAIN = "passed in the second run"
FAILED = "failed"
NOT_HERE = "not here"
NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class FaultRow:
    """A fault and the tests that inject it: `tests/…` paths, with or without the name of a test."""

    row: int
    group: str
    fault: str
    expected: str
    tests: tuple[str, ...] = ()
    not_here: str = ""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one test case. `test` is its path and name without parameters."""

    test: str
    outcome: str
    seconds: float


@dataclass(frozen=True, slots=True)
class RowResult:
    """What a run says about a row. `rounds` counts the test cases that ran."""

    row: int
    rounds: int
    verdict: str
    seconds: float


def load(path: Path = MATRIX) -> list[FaultRow]:
    """Reads the matrix. Every row has tests, or says why not."""
    rows = []
    for entry in yaml.safe_load(path.read_text()):
        tests = tuple(f"tests/{test}" for test in entry.pop("tests", ()))
        rows.append(FaultRow(**entry, tests=tests))
    numbers = [row.row for row in rows]
    if len(set(numbers)) != len(numbers):
        raise ValueError("a row number is used twice")
    if wrong := [row.row for row in rows if bool(row.tests) == bool(row.not_here)]:
        raise ValueError(f"rows {wrong} need either tests or not_here")
    return rows


def cases(report: Path) -> Iterator[CaseResult]:
    """Reads the test cases of a JUnit report of pytest."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by our own pytest
        folders, _, inner = case.attrib["classname"].partition(".test_")
        file, *classes = f"test_{inner}".split(".")
        name = case.attrib["name"].partition("[")[0]
        found = {child.tag for child in case}
        outcome = FAILED if found & {"failure", "error"} else "skipped" if "skipped" in found else PASSED
        yield CaseResult(
            "::".join([f"{folders.replace('.', '/')}/{file}.py", *classes, name]), outcome, float(case.attrib["time"])
        )


def judge(row: FaultRow, results: Iterable[CaseResult]) -> RowResult:
    """Returns the verdict on a row: passed only if all of its tests ran and none failed."""
    if row.not_here:
        return RowResult(row.row, 0, NOT_HERE, 0.0)
    by_test = {test: [case for case in results if _belongs(case.test, test)] for test in row.tests}
    own = [case for found in by_test.values() for case in found]
    outcomes = {case.outcome for case in own}
    if FAILED in outcomes:
        verdict = FAILED
    elif any(not any(case.outcome in (PASSED, PASSED_AGAIN) for case in found) for found in by_test.values()):
        verdict = NOT_RUN
    else:
        verdict = PASSED_AGAIN if PASSED_AGAIN in outcomes else PASSED
    ran = [case for case in own if case.outcome != "skipped"]
    return RowResult(row.row, len(ran), verdict, round(sum(case.seconds for case in own), 1))


def with_second_run(first: Sequence[CaseResult], second: Sequence[CaseResult]) -> list[CaseResult]:
    """Replaces the results of tests that ran a second time."""
    repeated = {case.test for case in second}
    kept = [case for case in first if case.test not in repeated]
    return [*kept, *(replace(case, outcome=PASSED_AGAIN) if case.outcome == PASSED else case for case in second)]


def _belongs(case: str, test: str) -> bool:
    return case == test or case.startswith(f"{test}::")


def store(results: Sequence[RowResult], versions: dict[str, str], path: Path = RESULTS) -> None:
    """Stores the results of a run of the whole matrix."""
    path.write_text(json.dumps({"versions": versions, "rows": [asdict(result) for result in results]}, indent=1) + "\n")


def stored(path: Path = RESULTS) -> dict[int, RowResult]:
    """Returns the stored results by row; none if the matrix has not been run as a whole."""
    if not path.exists():
        return {}
    return {entry["row"]: RowResult(**entry) for entry in json.loads(path.read_text())["rows"]}
