"""The report of the demo: the verdict on each pipeline and projection, the timings, and the exit code. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from tailrace.testkit.demo.consumer import Latency
from tailrace.testkit.demo.process import Downtime
from tailrace.testkit.oracle import OracleVerdict, ProjectionComparison

EXIT_BROKEN = 1

ERRORS = {
    "missing": ("missing", "committed, but not on Kafka"),
    "duplicated": ("duplicated", "on Kafka more than once"),
    "phantom": ("phantom", "on Kafka, but never committed"),
    "misplaced": ("misplaced", "valid but dead-lettered, or vice versa"),
    "out_of_order": ("out of order", "after a later event of the same key"),
    "positions": ("wrong positions", "stored backwards, or confirmed too early"),
}
COUNTS = {
    "committed": ("committed", "events, in the transactions of their data"),
    "rolled_back": ("rolled back", "must not appear on Kafka"),
    "published": ("on Kafka", "as read_committed consumers see it"),
    "dead_lettered": ("dead-lettered", "payload breaks its schema"),
}
MISAPPLIED = {
    "missing": "missing",
    "twice": "twice",
    "phantom": "phantom",
    "out_of_order": "out of order",
}
TIMES = {1: "once", 2: "twice"}


class ReportRow(NamedTuple):
    """A row of the table, with a value for each column; `good` is None if it cannot be right or wrong."""

    label: str
    values: Sequence[str]
    remark: str
    good: bool | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one pipeline."""

    name: str
    database: str
    verdict: OracleVerdict
    latency: Latency
    downtimes: Sequence[Downtime]

    def count(self, name: str) -> int:
        value = getattr(self.verdict, name)
        return len(value) if isinstance(value, list) else int(value)

    def as_json(self) -> dict[str, Any]:
        """Returns counts, the first ids of each kind of error, latency, and `ok`."""
        errors = {name: getattr(self.verdict, name)[:20] for name in ERRORS if self.count(name)}
        return {
            "database": self.database,
            **self.verdict.summary(),
            "wrong": errors,
            "kills": len(self.downtimes),
            "restart_ms": [round(downtime.millis) for downtime in self.downtimes],
            "latency": {name: round(value, 1) for name, value in asdict(self.latency).items()},
        }


@dataclass(frozen=True, slots=True)
class ProjectionResult:
    """The result of a projection."""

    name: str
    comparison: ProjectionComparison
    downtimes: Sequence[Downtime]

    def wrong(self) -> dict[str, list[str]]:
        """Returns the event ids of each kind of error."""
        return {name: getattr(self.comparison, name) for name in MISAPPLIED}

    def remark(self) -> str:
        """Returns the remark of its row, after the number of applied events."""
        errors = ", ".join(f"{MISAPPLIED[name]} {len(ids):,}" for name, ids in self.wrong().items())
        return f"applied, of {self.comparison.events:,} on the topic: {errors}; killed {len(self.downtimes)}×"

    def as_json(self) -> dict[str, Any]:
        """Returns counts, the first ids of each kind of error, and `ok`."""
        wrong = self.wrong()
        return {
            "ok": self.comparison.ok,
            "events": self.comparison.events,
            "applied": self.comparison.applied,
            **{name: len(ids) for name, ids in wrong.items()},
            "wrong": {name: ids[:20] for name, ids in wrong.items() if ids},
            "kills": len(self.downtimes),
            "restart_ms": [round(downtime.millis) for downtime in self.downtimes],
        }


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The results of one run."""

    results: Sequence[Result]
    projections: Sequence[ProjectionResult]
    seed: int
    seconds: float

    @property
    def ok(self) -> bool:
        return all(result.verdict.ok for result in self.results) and all(
            projection.comparison.ok for projection in self.projections
        )

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else EXIT_BROKEN

    @property
    def columns(self) -> list[str]:
        """The column headers; the last one is the total, if there are several."""
        return [*(result.database for result in self.results), *(["total"] if len(self.results) > 1 else [])]

    def sections(self) -> list[tuple[str, list[ReportRow]]]:
        """Returns the sections of the table."""
        happened = [ReportRow(label, self._counts(name), remark) for name, (label, remark) in COUNTS.items()]
        downtimes = [downtime.millis for result in self.results for downtime in result.downtimes]
        back = f"SIGKILL; each time back within {seconds(max(downtimes))}" if downtimes else ""
        happened.append(
            ReportRow("connector killed", self._added([len(result.downtimes) for result in self.results]), back)
        )
        wrong = [
            ReportRow(label, self._counts(name), remark, good=not self._total(name))
            for name, (label, remark) in ERRORS.items()
        ]
        latencies = [result.latency for result in self.results]
        steady = sum(latency.steady_events for latency in latencies)
        met = sum(latency.restart_events for latency in latencies)
        times = [
            ReportRow("p50", self._each(lambda of: f"{of.p50_ms:.0f} ms"), f"over {steady:,} events outside restarts"),
            ReportRow("p99", self._each(lambda of: f"{of.p99_ms:.0f} ms"), "of the same events"),
            ReportRow(
                "longest", self._each(lambda of: seconds(of.longest_ms)), f"of all events; {met:,} overlap a restart"
            ),
        ]
        sections = [("What happened", happened), ("What must not happen", wrong), ("From commit to consumer", times)]
        if self.projections:
            # Projections apply the orders, so their values are in the first column.
            rest = [""] * (len(self.columns) - 1)
            applied = [
                ReportRow(each.name, [f"{each.comparison.applied:,}", *rest], each.remark(), good=each.comparison.ok)
                for each in self.projections
            ]
            sections.append(("From topic to projection", applied))
        return sections

    def meaning(self) -> str:
        """Returns the verdict in one sentence."""
        if self.ok:
            kills = len(self.results[0].downtimes)
            how = f", with each connector killed {_times(kills)}" if kills else ""
            applied = "".join(
                f" The projection {each.name}, killed {_times(len(each.downtimes))}, applied each event exactly once."
                for each in self.projections
            )
            return (
                f"Exactly once and in order{how}: every committed event arrived once, after the one before it, "
                f"and nothing that was rolled back appeared.{applied}"
            )
        found = [
            f"{result.count(name):,} {ERRORS[name][0]} of the {result.name} (such as {items[0]})"
            for result in self.results
            for name in ERRORS
            if (items := getattr(result.verdict, name))
        ]
        found += [
            f"{len(items):,} {MISAPPLIED[name]} in the projection {each.name} (such as {items[0]})"
            for each in self.projections
            for name, items in each.wrong().items()
            if items
        ]
        return (
            f"The guarantee is broken: {', '.join(found)}. This is a bug in Tailrace: "
            f"please report it with --seed {self.seed} and the output of --json."
        )

    def as_json(self) -> dict[str, Any]:
        """Returns `ok`, the totals of all pipelines, and each pipeline and projection by its name."""
        return {
            "ok": self.ok,
            **{name: self._total(name) for name in (*COUNTS, *ERRORS)},
            "kills": sum(len(result.downtimes) for result in self.results),
            "pipelines": {result.name: result.as_json() for result in self.results},
            "projections": {projection.name: projection.as_json() for projection in self.projections},
            "seconds": round(self.seconds, 1),
            "seed": self.seed,
        }

    def _total(self, name: str) -> int:
        return sum(result.count(name) for result in self.results)

    def _counts(self, name: str) -> list[str]:
        return self._added([result.count(name) for result in self.results])

    def _added(self, counts: list[int]) -> list[str]:
        return [f"{count:,}" for count in (*counts, sum(counts))][: len(self.columns)]

    def _each(self, text: Callable[[Latency], str]) -> list[str]:
        """Returns a value per pipeline; times have no total."""
        return [*(text(result.latency) for result in self.results), ""][: len(self.columns)]


def _times(kills: int) -> str:
    return TIMES.get(kills, f"{kills} times")


def seconds(millis: float) -> str:
    """Formats a duration."""
    return f"{millis / 1000:.1f} s" if millis >= 1000 else f"{millis:.0f} ms"
