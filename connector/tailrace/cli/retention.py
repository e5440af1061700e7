"""`tailrace retention`: shows and deletes outbox rows that nobody needs any more, once or with every tick."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from tailrace.cli.output import emit_json, print_error, say
from tailrace.cli.replay.view import bar, when
from tailrace.cli.stop_signals import interruptible
from tailrace.config.load import load_pipeline
from tailrace.errors import TopicMissing, Unavailable
from tailrace.retention.context import consumers_of, retain, retention_settings
from tailrace.retention.run import Kept, RetentionReport
from tailrace.worker.wiring import Wiring, wire

app = typer.Typer(
    help="Delete outbox rows that nobody needs any more.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)
FILE = typer.Argument(..., metavar="FILE", help="The pipeline's settings, such as orders.yaml.")
AS_JSON = typer.Option(False, "--json", help="Print one JSON object.")
IGNORED = typer.Option(
    [], "--ignore-pipeline", metavar="NAME", help="Another pipeline of this outbox that no longer exists."
)
ACCEPT = typer.Option(
    False,
    "--accept-expired-dead-letters",
    help="Rows whose dead letter may have expired unseen count as published. Needed once, if an error says so.",
)
REASONS = {
    Kept.NOT_PUBLISHED: "not published, or not known to be",
    Kept.TOO_YOUNG: "not older than retention.after, or without a time",
    Kept.DEAD_LETTERED: "an open dead letter (`tailrace dlq list`)",
    Kept.PARKED: "waiting behind a parked key (`tailrace dlq parked`)",
    Kept.UNCERTAIN: "from a time whose dead letters have expired unseen",
    Kept.NOT_CONFIRMED: "not confirmed",
    Kept.CONFIRMED_RECENTLY: "confirmed, and still within the delay",
    Kept.CONSUMER_BEHIND: "a consumer has not passed it",
    Kept.PARTITION: "may be deleted, but other rows of their partition may not",
    Kept.CHANGED: "changed meanwhile",
    Kept.LOCKED: "locked by another transaction: the next run tries them again",
    Kept.REFUSED: "the database refuses to delete them (foreign key, trigger)",
}


@app.callback()
def _quiet() -> None:
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)


@app.command("plan")
def plan(
    file: Path = FILE, ignored: list[str] = IGNORED, accept_expired: bool = ACCEPT, as_json: bool = AS_JSON
) -> None:
    """Show how many outbox rows could be deleted now, and why the others stay. Changes nothing.

    Rows are never deleted if they are not published, if their dead letter is open, or if they wait behind a parked key.
    The settings under `retention:` add conditions: age, confirmations, consumers. All of them must hold.

    Exit codes: 0 done, 2 wrong usage or settings, 3 a server is not available or refuses.

    \b
    Examples:
      tailrace retention plan orders.yaml
      tailrace retention plan orders.yaml --json | jq .kept
    """
    _once(file, ignored, dry_run=True, accept_expired=accept_expired, as_json=as_json)


@app.command("apply")
def apply(
    file: Path = FILE, ignored: list[str] = IGNORED, accept_expired: bool = ACCEPT, as_json: bool = AS_JSON
) -> None:
    """Delete the outbox rows that nobody needs any more, once, in small batches.

    Each batch is one transaction with the record of what was deleted. It may be killed at any moment, run again, and
    run twice at once. The pipeline keeps running meanwhile, and publishes nothing because of it.

    Exit codes: 0 done, 2 wrong usage or settings, 3 a server is not available or refuses, 130 interrupted.

    \b
    Examples:
      tailrace retention apply orders.yaml
      tailrace retention apply orders.yaml --json | jq .rows
    """
    _once(file, ignored, dry_run=False, accept_expired=accept_expired, as_json=as_json)


@app.command("run")
def run(
    file: Path = FILE,
    tick: float = typer.Option(
        0, "--tick", min=0, max=86_400, help="Seconds between two runs. Default: retention.tick."
    ),
    ignored: list[str] = IGNORED,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object per run."),
) -> int:
    """Do what `apply` does, again and again, until it is stopped.

    If a server is not available, or the topic of confirmations does not exist, it reports that and tries again with the
    next tick. Everything it needs to know is in the database, so it can be restarted at any time.

    Exit codes: 0 stopped by a signal, 2 wrong usage or settings, 3 a server refuses.

    \b
    Examples:
      tailrace retention run orders.yaml
      tailrace retention run orders.yaml --tick 60 --json
    """
    wiring = wire(load_pipeline(file))
    seconds = tick or retention_settings(wiring).tick
    try:
        with interruptible():
            while True:
                try:
                    _show(wiring, _retain(wiring, ignored), dry_run=False, as_json=as_json)
                except (Unavailable, TopicMissing) as error:
                    print_error(error, as_json=as_json)
                sys.stdout.flush()
                time.sleep(seconds)
    except KeyboardInterrupt:
        return 0


def _once(file: Path, ignored: Sequence[str], *, dry_run: bool, accept_expired: bool, as_json: bool) -> None:
    wiring = wire(load_pipeline(file))
    retention_settings(wiring)
    with interruptible(), bar("reading" if dry_run else "deleting", quiet=as_json) as on_progress:

        def progress(now: RetentionReport) -> None:
            on_progress(0.0, f"{now.rows:,} rows, {now.kept.total():,} stay")

        report = _retain(wiring, ignored, dry_run=dry_run, accept_expired=accept_expired, on_progress=progress)
    _show(wiring, report, dry_run=dry_run, as_json=as_json)


def _retain(wiring: Wiring, ignored: Sequence[str], *, dry_run: bool = False, **options: Any) -> RetentionReport:  # noqa: ANN401
    apps = retention_settings(wiring).consumers
    consumers = []
    if apps:
        from tailrace.cli.project.command import load_app

        consumers = consumers_of([(name, load_app(name)) for name in apps])
    return retain(wiring, consumers, dry_run=dry_run, ignored=ignored, **options)


def _show(wiring: Wiring, report: RetentionReport, *, dry_run: bool, as_json: bool) -> None:
    kept = {reason.value: report.kept[reason] for reason in Kept}
    if as_json:
        fields = {"pipeline": wiring.settings.pipeline, "dry_run": dry_run, "in_outbox": report.in_outbox,
                "rows": report.rows, "first_ms": report.first_ms, "last_ms": report.last_ms, "kept": kept,
                "consumers": dict(report.consumers), "partitions": report.partitions,
                "forgotten": report.forgotten, "notes": report.notes}  # fmt: skip
        emit_json(fields)
        return
    span = f", created {when(report.first_ms)} to {when(report.last_ms)}" if report.first_ms is not None else ""
    say(f"{report.rows:,} rows {'may be deleted' if dry_run else 'deleted'}{span}"
        f"{'. Nothing was changed.' if dry_run else ''}")  # fmt: skip
    for name in report.partitions:
        say(f"  partition {name} {'would be ' if dry_run else ''}dropped")
    for reason, text in REASONS.items():
        if kept[reason.value]:
            say(f"  {kept[reason.value]:>12,}  stay: {text}")
    for name, count in report.consumers.items():
        say(f"  {count:>12,}  of them not passed by {name}")
    if report.forgotten:
        say(f"  {report.forgotten:>12,}  confirmations of unknown events are forgotten")
    for note in report.notes:
        say(f"note: {note}")
