"""`tailrace verify`: checks that every row of the outbox is on Kafka, exactly once, in order and unchanged."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from tailrace.cli.dlq.selection import moment
from tailrace.cli.dlq.view import printable
from tailrace.cli.output import emit_json, say, table
from tailrace.config.load import load_pipeline
from tailrace.verify.backend import Window
from tailrace.verify.findings import UNKNOWN, Example, RecordDefect, RowStatus
from tailrace.verify.verification import Verification, usual_jobs
from tailrace.verify.verification import verify as compare

PATIENCE = 20.0
SHOWN = (RowStatus.MISSING, RowStatus.UNDECIDED, *RecordDefect)
"""Problems; examples are shown for each."""
STATUSES = {
    RowStatus.PUBLISHED: "published",
    RowStatus.DEAD_LETTERED: "in the dead letters, open",
    RowStatus.REDRIVEN: "in the dead letters, fixed and redriven",
    RowStatus.DISCARDED: "in the dead letters, discarded",
    RowStatus.PARKED: "waiting behind a parked key",
    RowStatus.NOT_YET: "not yet published",
    RowStatus.BEFORE_START: "from before the first start: not published",
    RowStatus.EXPIRED: "older than the retention of their topic",
    RowStatus.MISSING: "MISSING",
    RowStatus.UNDECIDED: "UNDECIDED: not found, and earlier topics are not known",
}
DEFECTS = {
    RecordDefect.DUPLICATED: "DUPLICATED",
    RecordDefect.CHANGED: "PAYLOAD CHANGED",
    RecordDefect.KEY_CHANGED: "KEY CHANGED",
    RecordDefect.TYPE_CHANGED: "TYPE CHANGED",
    RecordDefect.WRONG_PARTITION: "WRONG PARTITION",
    RecordDefect.OUT_OF_ORDER: "OUT OF ORDER",
}
NAMES: dict[str, str] = {kind.value: name for kind, name in (*STATUSES.items(), *DEFECTS.items())}


def verify(
    file: Path = typer.Argument(..., metavar="FILE", help="The pipeline's settings, such as orders.yaml."),
    since: str = typer.Option("", "--from", help="Only events since then: 30m, 2h, 3d ago, or an ISO time."),
    until: str = typer.Option("", "--to", help="Only events before then."),
    wait_seconds: float = typer.Option(
        PATIENCE, "--wait", min=0, max=3600, help="Seconds to wait for the pipeline if rows are not found."
    ),
    jobs: int = typer.Option(0, "--jobs", min=0, max=64, help="Number of processes; 0: one per core, at most 4."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a report."),
) -> int:
    """Compare the outbox with its topics, event by event: missing, duplicated, changed, misplaced, out of order.

    Reads the outbox as it is now, then the topics, the dead letters and the parked events. Changes nothing and disturbs
    no pipeline. A row that is not on Kafka is missing only if the pipeline has passed it; otherwise it is not yet
    published. Events that are only on Kafka are counted but are not a problem, because rows may be purged.

    Exit codes: 0 clean, 1 differences, 2 wrong usage or settings, 3 a server is not available or refuses.

    \b
    Examples:
      tailrace verify orders.yaml
      tailrace verify orders.yaml --from 2h
      tailrace verify orders.yaml --from 2026-03-01 --to 2026-03-02 --json | jq .missing
    """
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)
    settings = load_pipeline(file)
    now = time.time_ns() // 1_000_000
    begun = time.monotonic()
    window = Window(moment(since, now), moment(until, now))
    found = compare(settings, window, wait_seconds=wait_seconds, jobs=jobs or usual_jobs())
    if as_json:
        emit_json({"pipeline": settings.pipeline, **result(found), "seconds": round(time.monotonic() - begun, 3)})
    else:
        _print(settings.pipeline, found, time.monotonic() - begun)
    return 1 if found.differences else 0


def result(found: Verification) -> dict[str, Any]:
    """Returns the result as JSON."""
    counts = found.findings
    return {
        "clean": not found.differences,
        "rows": counts.rows,
        **{status.value: counts.statuses[status] for status in RowStatus},
        **{defect.value: counts.defects[defect] for defect in RecordDefect},
        "records": counts.records,
        "letters": counts.letters,
        "published_again": counts.again,
        "only_on_kafka": counts.only_on_kafka,
        "not_compared": counts.not_compared,
        "foreign": found.foreign,
        "parked_without_letter": found.keys_without_dead_letter,
        "position": str(found.position) if found.position else None,
        "passed": found.passed,
        "notes": found.notes,
        "examples": {kind: [_example(each, found) for each in given] for kind, given in counts.examples.items()},
    }


def _print(pipeline: str, found: Verification, seconds: float) -> None:
    counts = found.findings
    rate = (counts.rows + counts.records) / seconds
    say(f"{pipeline}: {counts.rows:,} rows in the outbox, {counts.records:,} records, {counts.letters:,} dead letters; "
        f"{seconds:.1f} s, {rate:,.0f} a second\n")  # fmt: skip
    say("rows")
    _print_counts(
        {STATUSES[status]: counts.statuses[status] for status in RowStatus},
        always=(STATUSES[RowStatus.PUBLISHED], "MISSING"),
    )
    say("records")
    _print_counts({DEFECTS[defect]: counts.defects[defect] for defect in RecordDefect}, always=tuple(DEFECTS.values()))
    _print_counts(
        {
            "published again, by a redrive or replay": counts.again,
            "only on Kafka: purged since, or from another pipeline": counts.only_on_kafka,
            "payload not compared": counts.not_compared,
            "from other pipelines, or without an event id": found.foreign,
            "PARKED KEYS WITHOUT A DEAD LETTER": found.keys_without_dead_letter,
        }
    )
    for kind in SHOWN:
        if given := counts.examples.get(kind):
            total = counts.statuses[kind] + counts.defects[kind]
            number = f"the first {len(given)} of {total:,}" if total > len(given) else str(total)
            say()
            shown = [_example(each, found) for each in given]
            table(
                f"{NAMES[kind]}: {number}",
                [{name: printable(str(value)) for name, value in each.items()} for each in shown],
            )
    say()
    for note in found.notes:
        say(f"note: {note}")
    if not found.exactly_once and counts.defects[RecordDefect.DUPLICATED]:
        say("note: delivery is at_least_once, so duplicates are allowed")
    say(f"{found.differences:,} differences" if found.differences else "clean")


def _print_counts(counts: dict[str, int], always: tuple[str, ...] = ()) -> None:
    for name, count in counts.items():
        if count or name in always:
            say(f"  {count:>12,}  {name}")


def _example(example: Example, found: Verification) -> dict[str, Any]:
    if example.place != UNKNOWN:
        topic, partition = found.places[example.place]
        return {"id": example.id, "topic": topic, "partition": partition, "offset": example.offset}
    created = None
    if example.created_ms != UNKNOWN:
        created = datetime.fromtimestamp(example.created_ms / 1000, UTC).isoformat(timespec="milliseconds")
    topic_name = None if example.topic == UNKNOWN else found.topics[example.topic]
    return {"id": example.id, "topic": topic_name, "created": created}
