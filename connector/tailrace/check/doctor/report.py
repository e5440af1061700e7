"""The report of `tailrace doctor`: findings by pipeline and area, its JSON form and its exit code. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.check.codes import AREAS, CODES
from tailrace.check.result import CheckResult, State

SEVERITY = {State.FAIL: "problem", State.WARN: "warning", State.NOTE: "note"}
_ORDER = list(SEVERITY)
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The results for one pipeline, or for the worker with an empty name. `sampled`: which events were looked at."""

    pipeline: str
    file: str
    results: tuple[CheckResult, ...]
    sampled: str = ""

    @property
    def findings(self) -> list[CheckResult]:
        """What is not OK, by area, the worst first."""
        areas = list(AREAS)
        bad = [each for each in self.results if each.state in SEVERITY]
        return sorted(bad, key=lambda each: (areas.index(area_of(each)), _ORDER.index(each.state)))

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "file": self.file,
            "checks": len(self.results),
            "sampled": self.sampled,
            "findings": [finding_json(each) for each in self.findings],
        }


@dataclass(frozen=True, slots=True)
class Report:
    pipelines: tuple[Diagnosis, ...]
    worker: Diagnosis

    def count(self, state: State) -> int:
        return sum(each.state is state for part in self.parts for each in part.results)

    @property
    def parts(self) -> Sequence[Diagnosis]:
        return (*self.pipelines, self.worker)

    def ok(self, *, strict: bool) -> bool:
        return not self.count(State.FAIL) and not (strict and self.count(State.WARN))

    def to_json(self, *, strict: bool) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "ok": self.ok(strict=strict),
            "problems": self.count(State.FAIL),
            "warnings": self.count(State.WARN),
            "notes": self.count(State.NOTE),
            "pipelines": [each.to_json() for each in self.pipelines],
            "worker": self.worker.to_json(),
        }


def area_of(result: CheckResult) -> str:
    return CODES[result.code].area


def finding_json(result: CheckResult) -> dict[str, Any]:
    return {
        "code": result.code,
        "area": area_of(result),
        "severity": SEVERITY[result.state],
        "what": result.found,
        "why": CODES[result.code].why,
        "fixes": [fix._asdict() for fix in result.all_fixes],
    }
