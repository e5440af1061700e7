"""What came of it: the oracle's verdict, the timings, the words for both, and the exit code. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from tailrace.demo.latency import Latency, Outage
from tailrace.proof.oracle import Verdict

EXIT_BROKEN = 1

WRONGS = {
    "missing": ("missing", "committed, but not on Kafka"),
    "duplicated": ("duplicated", "on Kafka more than once"),
    "phantom": ("phantom", "on Kafka, but never committed"),
    "misplaced": ("misplaced", "valid but dead-lettered, or vice versa"),
    "out_of_order": ("out of order", "behind a later event of the same key"),
    "positions": ("positions astray", "stored backwards, or confirmed too early"),
}


class Row(NamedTuple):
    """A line of the table; `good` is None where there is nothing to judge."""

    label: str
    value: str
    remark: str
    good: bool | None = None


@dataclass(frozen=True, slots=True)
class Report:
    verdict: Verdict
    latency: Latency
    outages: Sequence[Outage]
    seed: int
    seconds: float

    @property
    def exit_code(self) -> int:
        return 0 if self.verdict.ok else EXIT_BROKEN

    def sections(self) -> list[tuple[str, list[Row]]]:
        """The table, part by part."""
        verdict, latency = self.verdict, self.latency
        back = " and ".join(seconds(outage.millis) for outage in self.outages)
        happened = [
            Row("committed in Postgres", f"{verdict.committed:,}", "events, beside the orders they tell of"),
            Row("rolled back", f"{verdict.rolled_back:,}", "never to be seen"),
            Row("on Kafka", f"{verdict.published:,}", "as read_committed readers see it"),
            Row("dead-lettered", f"{verdict.dead_lettered:,}", "payload breaks its schema"),
            Row("connector killed", f"{len(self.outages)}", f"SIGKILL; back after {back}" if back else ""),
        ]
        wrong = []
        for name, (label, meaning) in WRONGS.items():
            count = len(getattr(verdict, name))
            wrong.append(Row(label, f"{count:,}", meaning, count == 0))
        times = [
            Row("p50", f"{latency.p50_ms:.0f} ms", f"over {latency.steady_events:,} events that met no restart"),
            Row("p99", f"{latency.p99_ms:.0f} ms", "of the same"),
            Row("longest", seconds(latency.longest_ms), f"of all; {latency.restart_events:,} events met a restart"),
        ]
        return [("What happened", happened), ("What must not happen", wrong), ("From commit to consumer", times)]

    def meaning(self) -> str:
        """The verdict in one sentence."""
        if self.verdict.ok:
            killed = {0: "", 1: ", with the connector killed once", 2: ", with the connector killed twice"}
            how = killed.get(len(self.outages), f", with the connector killed {len(self.outages)} times")
            return (
                f"Exactly once and in order{how}: every committed event arrived once, behind the one before it, "
                "and nothing that was rolled back was ever seen."
            )
        wrongs = {name: getattr(self.verdict, name) for name in WRONGS if getattr(self.verdict, name)}
        counts = ", ".join(f"{len(items):,} {WRONGS[name][0]}" for name, items in wrongs.items())
        first = next(iter(wrongs.values()))[0]
        return (
            f"The guarantee is broken: {counts} (such as {first}). This is a bug in Tailrace: "
            f"please report it with --seed {self.seed} and the output of --json."
        )

    def as_json(self) -> dict[str, Any]:
        """One object: counts, ids of what went wrong (the first few), latency, and `ok`."""
        wrongs = {name: getattr(self.verdict, name)[:20] for name in WRONGS if getattr(self.verdict, name)}
        return {
            **self.verdict.summary(),
            "wrong": wrongs,
            "kills": len(self.outages),
            "restart_ms": [round(outage.millis) for outage in self.outages],
            "latency": {name: round(value, 1) for name, value in asdict(self.latency).items()},
            "seconds": round(self.seconds, 1),
            "seed": self.seed,
        }


def seconds(millis: float) -> str:
    """A duration as people say it."""
    return f"{millis / 1000:.1f} s" if millis >= 1000 else f"{millis:.0f} ms"
