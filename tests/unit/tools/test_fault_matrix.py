"""The fault matrix names tests that exist, and its verdicts are those of the tests."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tools.fault_matrix import (
    NOT_HERE,
    NOT_RUN,
    PASSED_AGAIN,
    CaseResult,
    FaultRow,
    cases,
    judge,
    load,
    with_second_run,
)

ROOT = Path(__file__).parents[3]
ROW = FaultRow(1, "Kafka", "it dies", "it lives", ("tests/faults/test_a.py::test_one", "tests/faults/test_b.py"))


def functions(file: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_named_test_exists() -> None:
    for row in load():
        for test in row.tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).is_file(), f"row {row.row}: {test}"
            assert not name or name in functions(file), f"row {row.row}: {test}"


def passed(test: str, outcome: str = "passed") -> CaseResult:
    return CaseResult(test, outcome, 1.5)


def test_a_row_passes_if_each_of_its_tests_ran_and_none_failed() -> None:
    ran = [
        passed("tests/faults/test_a.py::test_one"),
        passed("tests/faults/test_a.py::test_one"),
        passed("tests/faults/test_b.py::test_any"),
        passed("tests/faults/test_b.py::test_other", "skipped"),
        passed("tests/faults/test_c.py::test_one", "failed"),
    ]
    result = judge(ROW, ran)
    assert (result.verdict, result.rounds, result.seconds) == ("passed", 3, 6.0)


@pytest.mark.parametrize(
    ("ran", "verdict"),
    [
        ([], NOT_RUN),
        ([passed("tests/faults/test_a.py::test_one")], NOT_RUN),
        ([passed("tests/faults/test_a.py::test_one_more"), passed("tests/faults/test_b.py::test_any")], NOT_RUN),
        ([passed("tests/faults/test_a.py::test_one"), passed("tests/faults/test_b.py::test_x", "skipped")], NOT_RUN),
        ([passed("tests/faults/test_a.py::test_one"), passed("tests/faults/test_b.py::test_x", "failed")], "failed"),
    ],
)
def test_other_rows_do_not_pass(ran: list[CaseResult], verdict: str) -> None:
    assert judge(ROW, ran).verdict == verdict


def test_a_row_whose_test_passed_in_the_second_run_says_so() -> None:
    first = [passed(ROW.tests[0]), passed("tests/faults/test_b.py::test_x", "failed"), passed(ROW.tests[0], "failed")]
    ran = with_second_run(first, [passed(ROW.tests[0]), passed(ROW.tests[0]), passed("tests/faults/test_b.py::test_x")])
    result = judge(ROW, ran)
    assert (result.verdict, result.rounds) == (PASSED_AGAIN, 3)
    assert judge(ROW, with_second_run(first, [passed(ROW.tests[0])])).verdict == "failed"


def test_a_row_that_cannot_run_here_says_so() -> None:
    assert judge(FaultRow(2, "Kafka", "a", "b", not_here="no"), []).verdict == NOT_HERE


@pytest.mark.parametrize(
    "entries",
    [
        "- {row: 1, group: a, fault: b, expected: c}",
        "- {row: 1, group: a, fault: b, expected: c, tests: [x.py], not_here: d}",
        "- {row: 1, group: a, fault: b, expected: c, tests: [x.py]}\n" * 2,
    ],
)
def test_a_wrong_matrix_is_refused(tmp_path: Path, entries: str) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(entries)
    with pytest.raises(ValueError, match="row"):
        load(file)


def test_cases_of_a_real_report(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_kinds.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_one(n): assert n == 1\n"
        "class TestGroup:\n    def test_two(self): pytest.skip('no')\n"
        "@pytest.fixture\ndef broken(): raise OSError\n"
        "def test_three(broken): pass\n"
    )
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "--import-mode=importlib", f"--junitxml={report}", "tests"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=120)
    assert run.returncode == 1, run.stdout
    assert sorted((case.test, case.outcome) for case in cases(report)) == [
        ("tests/test_kinds.py::TestGroup::test_two", "skipped"),
        ("tests/test_kinds.py::test_one", "failed"),
        ("tests/test_kinds.py::test_one", "passed"),
        ("tests/test_kinds.py::test_three", "failed"),
    ]
