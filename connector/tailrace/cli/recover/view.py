"""The output of `tailrace recover`: a report, or one JSON object."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

from tailrace.check.result import human_seconds
from tailrace.cli.dlq.view import printable
from tailrace.cli.output import say, table
from tailrace.cli.replay.view import bar
from tailrace.recovery.apply import RecoveryResult
from tailrace.recovery.plan import RecoveryPlan
from tailrace.recovery.rules import RecoveryTally, RowDecision

LEFT_OUT = {
    RowDecision.PUBLISHED: "already on Kafka",
    RowDecision.PASSED: "passed before, according to the position history",
    RowDecision.EARLIER: "not on Kafka, created long before the loss: assumed published, or older than the pipeline",
    RowDecision.OLDER: "created before --since",
    RowDecision.LEFT_OUT: "left out by the first read (source.start_where)",
    RowDecision.BROUGHT: "in the log around the skipped transaction",
    RowDecision.REUSED: "UNDECIDED: their ids were published before, with other payloads",
    RowDecision.UNDECIDED: "UNDECIDED: not on Kafka, and not known whether they were published",
}


def show_plan(pipeline: str, plan: RecoveryPlan, stream: TextIO | None = None) -> None:
    case, tally = plan.case, plan.tally
    out = stream or sys.stdout
    if case.error is None:
        say(f"{pipeline}: nothing is wrong; checked because of --force", out)
    else:
        say(f"{pipeline}: {case.error.code}: {case.error.what}", out)
    say(f"  last position  {case.lost if case.lost else 'not known'}", out)
    entry = plan.evidence.entry
    if entry is not None:
        say(f"  history        shows what was passed at {entry.position}, {_time(entry.sampled_ms)}", out)
    say(f"\n{tally.rows:,} rows in the outbox", out)
    say(f"  {tally.decisions[RowDecision.MISSED]:>12,}  missed: will be published", out)
    for decision, words in LEFT_OUT.items():
        if tally.decisions[decision]:
            say(f"  {tally.decisions[decision]:>12,}  {words}", out)
    _show_missed(tally, out)
    say("\nsteps", out)
    steps = [
        *plan.steps,
        f"publish {tally.decisions[RowDecision.MISSED]:,} events in the order of {', '.join(plan.order_by)}",
    ]
    for number, step in enumerate(steps, 1):
        say(f"  {number}. {step}", out)
    say(f"  about {human_seconds(plan.estimate)}", out)
    for note in plan.notes:
        say(f"note: {note}", out)
    if tally.undecided:
        say(f"UNDECIDED: {', '.join(printable(name) for name in tally.examples)}", out)
        say("Choose a time before which everything was published, and give it as --since TIME.", out)


def show_recovered(pipeline: str, done: RecoveryResult, seconds: float) -> None:
    say(f"{pipeline}: {done.published:,} events published, {done.dead_letters:,} dead letters; {seconds:.1f} s")
    if not done.complete:
        say("It is not complete: run it again. Until then `tailrace run` refuses to start.")
        return
    _show_missed(done.tally, sys.stdout)
    say(f"\nIt continues from {done.position}: tailrace run")


def plan_json(pipeline: str, plan: RecoveryPlan) -> dict[str, Any]:
    case, entry = plan.case, plan.evidence.entry
    error = None if case.error is None else {"code": case.error.code, "what": case.error.what, "why": case.error.why}
    return {
        "pipeline": pipeline,
        "case": error,
        "unfinished": case.unfinished,
        "lost": str(case.lost) if case.lost else None,
        "ledger": None if entry is None else {"position": str(entry.position), "at": _time(entry.sampled_ms)},
        "steps": plan.steps,
        "order_by": list(plan.order_by),
        **_counts(plan.tally),
        "undecided": plan.tally.undecided,
        "examples": plan.tally.examples,
        "read_whole_topics": plan.read_whole,
        "notes": plan.notes,
        "estimated_seconds": round(plan.estimate, 1),
    }


def recovered_json(pipeline: str, plan: RecoveryPlan, done: RecoveryResult, seconds: float) -> dict[str, Any]:
    return {
        "pipeline": pipeline,
        "case": plan.case.error.code if plan.case.error else None,
        "recovery": plan.case.mark.id,
        "complete": done.complete,
        "published": done.published,
        "dead_letters": done.dead_letters,
        **_counts(done.tally),
        "position": str(done.position),
        "seconds": round(seconds, 3),
    }


@contextmanager
def progress(doing: str, total: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Shows how many rows were read; yields a function that takes their number."""
    with bar(doing, quiet=quiet) as show:

        def on_rows(rows: int) -> None:
            if rows % 1000 == 0:
                show(rows / total if total else 0.0, f"{rows:,} rows")

        yield on_rows


def _show_missed(tally: RecoveryTally, out: TextIO) -> None:
    if not tally.missed:
        return
    rows = [
        {"type": printable(type_name), "topic": printable(topic), "events": count}
        for (type_name, topic), count in tally.missed.most_common()
    ]
    say(stream=out)
    table(f"created {_time(tally.first_ms)} to {_time(tally.last_ms)}", rows, out)


def _counts(tally: RecoveryTally) -> dict[str, Any]:
    return {
        "rows": tally.rows,
        "missed": tally.decisions[RowDecision.MISSED],
        "left_out": {decision.value: tally.decisions[decision] for decision in LEFT_OUT},
        "first": _time(tally.first_ms),
        "last": _time(tally.last_ms),
        "by_type": [
            {"type": type_name, "topic": topic, "events": count}
            for (type_name, topic), count in tally.missed.most_common()
        ],
    }


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
