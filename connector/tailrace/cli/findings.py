"""Prints findings: what, why, and fixes that can be copied as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby

from tailrace.check.codes import AREAS, CODES
from tailrace.check.doctor.report import SEVERITY, Diagnosis, Report, area_of
from tailrace.check.result import CheckResult, State
from tailrace.cli.output import has_colour, say

_COLOURS = {State.FAIL: "\x1b[1;31m", State.WARN: "\x1b[33m", State.NOTE: "\x1b[36m"}
_RESET = "\x1b[0m"
HEADS = {"sql": "SQL", "shell": "shell", "yaml": "YAML", "mongosh": "mongosh", "text": "what to do"}


def print_report(report: Report) -> None:
    for part in report.parts:
        if part.pipeline or part.findings:
            for line in _part(part):
                say(line)
            say()
    say(f"{len(report.pipelines)} pipeline{'s' * (len(report.pipelines) != 1)}: {summary(report)}.")
    sys.stdout.flush()


def summary(report: Report) -> str:
    counts = [(report.count(state), name) for state, name in SEVERITY.items()]
    return ", ".join(f"{number or 'no'} {name}{'s' * (number != 1)}" for number, name in counts)


def _part(part: Diagnosis) -> Iterator[str]:
    findings = part.findings
    title = f"{part.pipeline} ({part.file})" if part.pipeline else AREAS["worker"]
    yield f"{title}: {len(findings) or 'no'} finding{'s' * (len(findings) != 1)}"
    if part.sampled:
        yield f"  sampled events: {part.sampled}"
    for area, group in groupby(findings, key=area_of):
        yield ""
        yield f"  {AREAS[area]}"
        for finding in group:
            yield from _finding(finding)


def _finding(finding: CheckResult) -> Iterator[str]:
    colour, reset = (_COLOURS[finding.state], _RESET) if has_colour(sys.stdout) else ("", "")
    yield f"    {colour}{SEVERITY[finding.state]}{reset} {finding.code}: {finding.found}"
    yield f"      why: {CODES[finding.code].why}"
    for fix in finding.all_fixes:
        yield f"      {HEADS[fix.kind]}:"
        yield from (f"        {line}" for line in fix.text.splitlines())
