"""The output of `tailrace replay`: plans, progress, and the differences of a shadow replay."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tailrace.check.result import human_seconds
from tailrace.cli.dlq.view import printable
from tailrace.cli.output import report_progress, reports_progress, say, table
from tailrace.replay.apply import Progress
from tailrace.replay.diff import KINDS, NOT_PUBLISHED, SAME, Differences, DiffRecord
from tailrace.replay.plan import ReplayPlan
from tailrace.replay.source_log import describe_position

EVERY_SECONDS = 5.0
"""Seconds between two progress lines if there is no terminal."""
SOURCES = {
    "log": "the log, in commit order",
    "table": "the outbox itself, in the order of source.order_by",
    "archive": "the archive, in the order of its files",
}
NAMES = {
    "only_in_shadow": "only in the shadow",
    "only_in_original": "only in the original",
    "set_aside": "dead-lettered now: in the shadow's dead letters",
    "value_changed": "value changed",
    "key_changed": "key changed",
    "partition_changed": "partition changed",
    "topic_changed": "topic changed",
    SAME: "the same",
    NOT_PUBLISHED: "dead letters in the shadow, and not on the original topics either",
}

ShowProgress = Callable[[float, str], None]
"""Takes the completed share and a short text."""


@contextmanager
def bar(title: str, *, quiet: bool) -> Iterator[ShowProgress]:
    """Shows a progress bar on a terminal, a line from time to time elsewhere, nothing if `quiet`.

    If a worker runs the command as a job, it reads the progress as JSON.
    """
    if quiet:
        yield report_progress if reports_progress() else lambda _, __: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        with Progress(*columns, TextColumn("{task.fields[words]}"), console=Console(stderr=True)) as drawn:
            task = drawn.add_task(title, total=1.0, words="")
            yield lambda share, words: drawn.update(task, completed=share, words=words)
    else:
        yield _ProgressLines(title)


class _ProgressLines:
    def __init__(self, title: str) -> None:
        self._title = title
        self._next = time.monotonic() + EVERY_SECONDS

    def __call__(self, share: float, words: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY_SECONDS
            say(f"{self._title}: {share:.0%}, {words}", sys.stderr)


def when(at_ms: int | None) -> str:
    if not at_ms:
        return "-"
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return f"{at_ms} ms from 1970"  # a year that the database supports and Python does not


def print_plan(plan: ReplayPlan, file: Path) -> None:
    estimate = plan.estimate
    target = {
        "same": "the same topics, next to the pipeline",
        "shadow": f"shadow topics ending in {plan.suffix}, next to the pipeline",
        "in_place": "in place: the pipeline is rewound and streams forward again",
    }[plan.target]
    lines = [
        ("replay", plan.id),
        ("pipeline", plan.pipeline),
        ("from", SOURCES[plan.origin]),
        ("to", target),
        ("begin", f"{plan.given[0] or 'anywhere'}: {describe_position(plan.start)}"),
        ("end", f"{plan.given[1] or 'where the pipeline is'}: {describe_position(plan.end)}"),
        (
            "events",
            f"{estimate.events:,} of {estimate.rows:,} rows, {when(estimate.first_ms)} to {when(estimate.last_ms)}",
        ),
        ("schemas", f"{estimate.passes:,} pass today, {estimate.fails.total():,} fail"),
        ("takes", f"about {human_seconds(estimate.duration)}"),
    ]
    for name, value in lines:
        say(f"{name:<10} {printable(value)}")
    say()
    table("by type", [{"type": printable(name), "events": count} for name, count in estimate.by_type.most_common()])
    table("by topic", [{"topic": name, "events": count} for name, count in estimate.by_topic.most_common()])
    if estimate.examples:
        rows = [{name: printable(value) for name, value in each.items()} for each in estimate.examples]
        table("would become dead letters", rows)
    if plan.consumers:
        rows = [{**each, "topics": ", ".join(each["topics"]), "horizon_ms": when(each["horizon_ms"])}
                for each in plan.consumers]  # fmt: skip
        table("consumers", rows)
    for note in plan.notes:
        say(f"note: {printable(note)}")
    say(f"Nothing was changed. Apply it with: tailrace replay apply {file}")


def print_applied(plan: ReplayPlan, done: Progress, file: Path, *, continued: bool) -> None:
    earlier = "; earlier runs published the rest" if continued else ""
    say(f"replay {plan.id}: {done.published:,} events published, {done.dead_letters:,} dead letters{earlier}")
    if done.already_dead_lettered:
        say(
            f"note: {done.already_dead_lettered:,} of them had a dead letter already, which was left unchanged: "
            "`tailrace dlq list --all`"
        )
    missing = plan.estimate.events - done.published - done.dead_letters
    if missing and not continued:
        say(f"note: {missing:,} fewer than planned: their rows were deleted or updated since the plan was made")
    if plan.suffix:
        say(f"Compare with: tailrace replay diff {file}")


def differences(found: Differences) -> dict[str, Any]:
    """Returns the differences as JSON."""
    return {
        "clean": not found.total,
        "events": found.events,
        SAME: found.counts[SAME],
        NOT_PUBLISHED: found.counts[NOT_PUBLISHED],
        **{kind: found.counts[kind] for kind in KINDS},
        "examples": {kind: [_example(each, found) for each in given] for kind, given in found.examples.items()},
    }


def print_differences(found: Differences) -> None:
    say(f"{found.events:,} events")
    for kind in (SAME, NOT_PUBLISHED, *KINDS):
        if found.counts[kind] or kind == SAME:
            say(f"  {found.counts[kind]:>12,}  {NAMES[kind]}")
    for kind in KINDS:
        if given := found.examples.get(kind):
            say()
            shown = [{name: printable(str(value)) for name, value in _example(each, found).items()} for each in given]
            table(NAMES[kind], shown)
    say(f"{found.total:,} differences" if found.total else "no differences")


def _example(record: DiffRecord, found: Differences) -> dict[str, Any]:
    topic = found.topics[record.topic] if 0 <= record.topic < len(found.topics) else None
    return {"id": record.id, "topic": topic, "partition": record.partition, "offset": record.offset}
