"""`tailrace archive`: moves old outbox rows to files, lists the files, checks them, and expires old ones."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tailrace.archive import require_installed
from tailrace.archive.manifest import ManifestEntry
from tailrace.cli.output import emit_json, say, table
from tailrace.cli.replay.view import bar, when
from tailrace.config.load import load_pipeline
from tailrace.config.model import PipelineSettings
from tailrace.config.retention import age_seconds
from tailrace.errors import ConfigError
from tailrace.replay.points import Moment, parse
from tailrace.worker.options import kafka_options
from tailrace.worker.wiring import wire

if TYPE_CHECKING:
    from tailrace.archive.repository import ArchiveRepository
    from tailrace.archive.writer import ArchiveReport

app = typer.Typer(
    help="Move old outbox rows to files, list the files, check them, expire old ones.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)
FILE = typer.Argument(..., metavar="FILE", help="The pipeline's settings, such as orders.yaml.")
AS_JSON = typer.Option(False, "--json", help="Print one JSON object.")
SHOWN = 10


@app.callback()
def _quiet() -> None:
    require_installed()
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)


@app.command("write")
def write(
    file: Path = FILE,
    before: str = typer.Option(
        "90d", "--before", metavar="TIME", help="Rows created before then: 90d ago, 2026-03-01."
    ),
    keep: bool = typer.Option(False, "--keep", help="Leave the rows in the outbox; a later run deletes them."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show what would be archived, and change nothing."),
    ignored: list[str] = typer.Option(
        [], "--ignore-pipeline", metavar="NAME", help="Another pipeline of this outbox that no longer exists."
    ),
    as_json: bool = AS_JSON,
) -> int:
    """Write old outbox rows to Parquet files at archive.url, then delete exactly those rows from the outbox.

    Rows are selected by the time in outbox.columns.timestamp, and only if this pipeline and others of the same outbox
    have passed them. A file is written, read back and listed before any of its rows is deleted, and a row is deleted
    only if it is identical to the file. Rows stay if their event is an open dead letter or waits behind a parked key.
    If it is killed, run it again: nothing is lost or archived twice. The pipeline keeps running meanwhile.

    Exit codes: 0 done, 2 wrong usage or settings, 3 a server or the archive is not available or refuses.

    \b
    Examples:
      tailrace archive write orders.yaml --dry-run
      tailrace archive write orders.yaml --before 180d
      tailrace archive write orders.yaml --before 2026-03-01 --keep
    """
    point = parse(before, datetime.now().astimezone())
    if not isinstance(point, Moment):
        raise ConfigError(
            f"--before {before} is not a time", remedy="Use a time such as --before 90d or --before 2026-03-01."
        )
    from tailrace.replay.archive_context import archive

    wiring = wire(load_pipeline(file))
    begun = time.monotonic()
    with bar("archiving", quiet=as_json) as on_progress:

        def progress(now: ArchiveReport) -> None:
            done = (now.deleted / now.rows if now.rows else 0.0) if not keep and not dry_run else 0.0
            on_progress(done, f"{now.rows:,} rows in {len(now.files):,} files, {now.deleted + now.finished:,} deleted")

        report, notes = archive(wiring, point.at_ms, keep=keep, dry_run=dry_run, on_progress=progress, ignored=ignored)
    seconds = round(time.monotonic() - begun, 3)
    if as_json:
        fields = {"pipeline": wiring.settings.pipeline, "before_ms": point.at_ms, "dry_run": dry_run, "kept": keep,
                "rows": report.rows, "first_ms": report.first_ms, "last_ms": report.last_ms,
                "deleted": report.deleted, "finished": report.finished, "unplaced": report.unplaced,
                "changed": report.changed, "later": report.later, "refused": report.refused,
                "held": report.held, "archived_before": report.archived_before, "orphans": report.orphans,
                "files": [entry.to_json() for entry in report.files], "notes": list(notes),
                "seconds": seconds}  # fmt: skip
        emit_json(fields)
    else:
        _print(report, notes, keep=keep, dry_run=dry_run)
    return 0


@app.command("list")
def show(file: Path = FILE, as_json: bool = AS_JSON) -> int:
    """List the files of the archive with their number of rows and time range.

    \b
    Examples:
      tailrace archive list orders.yaml
      tailrace archive list orders.yaml --json | jq -r '.files[].file'
    """
    repository = _repository(file)
    rows = sum(entry.rows for entry in repository.entries)
    if as_json:
        emit_json({"pipeline": repository.pipeline, "url": repository.store.url, "rows": rows,
                   "orphans": repository.orphans,
                   "files": [entry.to_json() for entry in repository.entries]})  # fmt: skip
        return 0
    table(
        f"{repository.store.url}: {len(repository.entries):,} files, {rows:,} rows",
        [_line(entry) for entry in repository.entries],
    )
    _print_orphans(repository.orphans)
    return 0


@app.command("check")
def check(file: Path = FILE, as_json: bool = AS_JSON) -> int:
    """Check every file of the archive: whether it exists and is what was written.

    Exit codes: 0 all are good, 1 some are not, 2 wrong usage or settings, 3 the archive is not available or its list
    is damaged.

    \b
    Examples:
      tailrace archive check orders.yaml
      tailrace archive check orders.yaml --json | jq .flaws
    """
    repository = _repository(file)
    flaws: list[dict[str, Any]] = []
    rows = 0
    with bar("checking", quiet=as_json) as on_progress:
        for number, (entry, flaw) in enumerate(repository.flaws(), 1):
            rows += 0 if flaw else entry.rows
            if flaw:
                flaws.append({"file": entry.file, "rows": entry.rows, "flaw": flaw})
            on_progress(number / len(repository.entries), f"{number:,} files, {len(flaws):,} flaws")
    if as_json:
        emit_json({"pipeline": repository.pipeline, "clean": not flaws, "files": len(repository.entries), "rows": rows,
                   "flaws": flaws, "orphans": repository.orphans})  # fmt: skip
    else:
        say(f"{repository.store.url}: {len(repository.entries):,} files, {rows:,} rows are as they were written")
        if flaws:
            table("not as they were written", flaws)
            say("Restore them from a copy: versions of the bucket, a backup.")
        _print_orphans(repository.orphans)
    return 1 if flaws else 0


@app.command("expire")
def expire(
    file: Path = FILE,
    after: str = typer.Option(..., "--after", metavar="AGE", help="Files whose rows are all older: 3y, 180d."),
    apply: bool = typer.Option(False, "--apply", help="Delete the files. Without it, nothing is changed."),
    ignored: list[str] = typer.Option(
        [], "--ignore-replay", metavar="ID", help="A replay of the archive that will not be continued."
    ),
    as_json: bool = AS_JSON,
) -> int:
    """Expire old files of the archive: show them, or delete them with --apply.

    A file expires when the time in outbox.columns.timestamp of its newest row is older than --after. Files expire from
    the oldest on; the newest file stays, and so do files that a started replay has yet to read. An entry is deleted
    before its file. If it is killed, the archive is complete without the file; run it again to delete the rest.

    Exit codes: 0 done, 2 wrong usage or settings, 3 a server or the archive is not available or refuses.

    \b
    Examples:
      tailrace archive expire orders.yaml --after 3y
      tailrace archive expire orders.yaml --after 3y --apply
      tailrace archive expire orders.yaml --after 3y --json | jq .rows
    """
    from tailrace.archive import expire as expiry

    seconds = age_seconds(after)
    if seconds is None:
        raise ConfigError(f"--after {after} is not an age", remedy="Use an age such as --after 3y or --after 180d.")
    before_ms = time.time_ns() // 1_000_000 - seconds * 1000
    settings = load_pipeline(file)
    repository = open_repository_of(settings)
    replays = expiry.replays_in_progress(kafka_options(settings), repository.name)
    report = expiry.plan_expiry(repository, before_ms, replays, ignored)
    if apply:
        expiry.expire(repository, report)
    if as_json:
        emit_json({"pipeline": repository.pipeline, "url": repository.store.url, "before_ms": before_ms,
                   "dry_run": not apply, "rows": report.rows, "files": [entry.to_json() for entry in report.files],
                   "leftovers": report.leftovers, "notes": report.notes})  # fmt: skip
        return 0
    table(
        f"{repository.store.url}: {len(report.files):,} files, {report.rows:,} rows "
        f"{'expired' if apply else 'would expire. Nothing was changed; delete them with --apply'}",
        [_line(entry) for entry in report.files],
    )
    if report.leftovers:
        say(f"{len(report.leftovers):,} files of earlier runs {'deleted' if apply else 'would be deleted'}")
    for note in report.notes:
        say(f"note: {note}")
    return 0


def _repository(file: Path) -> ArchiveRepository:
    return open_repository_of(load_pipeline(file))


def open_repository_of(settings: PipelineSettings) -> ArchiveRepository:
    from tailrace.archive.repository import open_repository

    return open_repository(settings)


def _print(report: ArchiveReport, notes: tuple[str, ...], *, keep: bool, dry_run: bool) -> None:
    span = f", created {when(report.first_ms)} to {when(report.last_ms)}" if report.rows else ""
    if dry_run:
        gone = "" if keep else " and deleted from the outbox"
        say(f"{report.rows:,} rows would be archived{gone}{span}. Nothing was changed.")
    else:
        gone = "all are still in the outbox" if keep else f"{report.deleted:,} deleted from the outbox"
        say(f"{report.rows:,} rows archived in {len(report.files):,} files{span}; {gone}")
    for count, words in (
        (report.finished, f"rows of earlier files {'would be ' if dry_run else ''}deleted from the outbox"),
        (report.unplaced, "rows archived whose record is not on the topics (any more)"),
        (
            report.held,
            "rows stay: their event is an open dead letter, or waits behind a parked key (`tailrace dlq list`)",
        ),
        (report.archived_before, "rows are in earlier files already"),
        (report.changed, "rows stay: they were changed since they were archived"),
        (report.later, "rows stay: they were put back since, and the pipeline may not have passed them"),
        (report.refused, "rows stay: the database refuses to delete them (foreign key, trigger)"),
    ):
        if count:
            say(f"  {count:>12,}  {words}")
    for note in notes:
        say(f"note: {note}")
    _print_orphans(report.orphans)


def _print_orphans(orphans: list[str]) -> None:
    if orphans:
        say(f"note: {len(orphans):,} files are not part of the archive: a run was stopped before it "
            "listed them. Unless one is running now, they can be deleted:")  # fmt: skip
        for name in orphans[:SHOWN]:
            say(f"  {name}")


def _line(entry: ManifestEntry) -> dict[str, object]:
    return {
        "number": entry.number,
        "rows": entry.rows,
        "bytes": entry.bytes,
        "created from": when(entry.created.first_ms),
        "to": when(entry.created.last_ms),
        "file": entry.file,
    }
