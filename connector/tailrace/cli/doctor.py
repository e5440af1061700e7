"""`tailrace doctor`: checks pipelines, their servers and topics, and what they share."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import typer

from tailrace.check.doctor.examine import Examined, examine
from tailrace.check.doctor.machine import read_machine
from tailrace.check.doctor.report import Diagnosis, Report
from tailrace.check.doctor.worker_rules import check_machine, check_pipelines
from tailrace.check.findings import advice, problem
from tailrace.check.result import CheckResult
from tailrace.cli.findings import print_report
from tailrace.cli.output import emit_json, is_on_worker, report_progress, reports_progress
from tailrace.errors import ConfigError
from tailrace.manager.folder import PipelineFolder

AT_ONCE = 4
_CLEAR_LINE = "\r\x1b[K"


def doctor(
    files: list[Path] = typer.Argument(
        None, metavar="[FILE|FOLDER]...", help="Settings of pipelines, or folders of them; by default this folder."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    strict: bool = typer.Option(False, "--strict", help="Exit with 1 for warnings as well."),
) -> int:
    """Check pipelines, servers and topics thoroughly, also while they run.

    Checks everything of `tailrace check`, and more: known bugs of servers, settings of Postgres, MongoDB and Kafka,
    rights, topics, the registry, the size and indexes of the outbox, and whether the events in it have schemas and
    routes. With several pipelines, also what they must not share, and the machine. Changes nothing; large tables are
    only sampled.

    Each finding is a problem (stops a pipeline, now or soon), a warning (works, but a careful operator would change it)
    or a note, with a stable code, the reason, and the SQL, command or settings that fix it. docs/doctor.md lists the
    codes.

    Exit codes: 0 without a problem, 1 with one (or with a warning, if --strict).

    Examples:

        tailrace doctor orders.yaml

        tailrace doctor pipelines/ --strict

        tailrace doctor --worker http://127.0.0.1:8083

        tailrace doctor orders.yaml --json | jq .problems
    """
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)
    found, shared, folders = _expand(files or [Path()])
    progress = _Progress(len(found))
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="doctor") as pool:
        examined = list(pool.map(progress.run, found))
    progress.clear()
    report = Report(tuple(each.diagnosis for each in examined), _worker(examined, shared, folders))
    if as_json:
        emit_json(report.to_json(strict=strict))
    else:
        print_report(report)
    return 0 if report.ok(strict=strict) else 1


def _expand(given: Sequence[Path]) -> tuple[list[Path], list[CheckResult], list[Path]]:
    """Returns the files of pipelines, the findings about files that are none, and the folders."""
    files: list[Path] = []
    findings: list[CheckResult] = []
    folders: list[Path] = []
    for each in given:
        if not each.is_dir():
            files.append(each)
            continue
        folders.append(each)
        scan = PipelineFolder(each).scan({})
        files += [pipeline.file for pipeline in scan.pipelines.values()]
        for file, error in scan.problems.items():
            what = f"{file}: {' '.join(f'{error.what}. {error.why}'.split())}"
            findings.append(problem("same-name", what, advice(error.remedy)))
    if not files and not findings:
        raise ConfigError(
            "there is no pipeline in " + ", ".join(str(each.absolute()) for each in given),
            remedy="Name the settings of a pipeline, such as orders.yaml, or a folder of them.",
        )
    return files, findings, folders


def _worker(examined: Sequence[Examined], shared: Sequence[CheckResult], folders: Sequence[Path]) -> Diagnosis:
    identities = [each.identity for each in examined if each.identity is not None]
    places = {Path(each.diagnosis.file).absolute().parent: "settings" for each in examined}
    places |= {folder.absolute(): "settings" for folder in folders}
    places |= {folder: purpose for each in examined for folder, purpose in each.folders.items()}
    running = len(examined) if is_on_worker() else 0
    results = [*shared, *check_pipelines(identities), *check_machine(read_machine(places, len(examined), running))]
    return Diagnosis("", "", tuple(results))


class _Progress:
    """Shows what is checked now, on one line of a terminal, or as progress of a job."""

    def __init__(self, pipelines: int) -> None:
        self._pipelines = pipelines
        self._done = 0
        self._lock = threading.Lock()
        self._shows = sys.stderr.isatty()

    def run(self, file: Path) -> Examined:
        examined = examine(file, self._tell)
        with self._lock:
            self._done += 1
        self._tell(examined.diagnosis.pipeline)
        return examined

    def clear(self) -> None:
        if self._shows:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()

    def _tell(self, text: str) -> None:
        with self._lock:
            if reports_progress():
                report_progress(self._done / self._pipelines, text)
            elif self._shows:
                sys.stderr.write(f"{_CLEAR_LINE}{self._done} of {self._pipelines} checked; {text[:80]}")
                sys.stderr.flush()
