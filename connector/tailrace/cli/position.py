"""`tailrace position`: shows where a pipeline is and was, and rewinds it."""

from __future__ import annotations

import logging
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from tailrace.check.health import read_kafka_status
from tailrace.check.result import human_seconds
from tailrace.cli.output import emit_json, say, table
from tailrace.config.load import load_pipeline
from tailrace.errors import ConfigError, TailraceError
from tailrace.positions.base import Position, to_stored
from tailrace.replay.points import parse
from tailrace.replay.reset import require_stopped, reset
from tailrace.replay.source_log import describe_position, format_time, open_log, resolve
from tailrace.state import position_history
from tailrace.state.position_history import Offsets, PositionEntry
from tailrace.worker.wiring import Wiring, wire

app = typer.Typer(
    help="Show where a pipeline is and was, and rewind it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)
FILE = typer.Argument(..., metavar="FILE", help="The pipeline's settings, such as orders.yaml.")
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
NEWEST = 20


@app.command()
def show(
    file: Path = FILE,
    at: str = typer.Option(
        "", "--at", help="A point in the past instead of now: 24h, an LSN, event:ID, ….", metavar="POINT"
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Show where a pipeline is: position, time, the offsets of its topics there, and how far back its log reaches.

    With --at, the same for a point in the past: 24h (ago), "yesterday 14:05", 2026-03-01T12:00:00Z, an LSN, a
    cluster time, a resume token, event:ID (right before that event), or oldest.

    \b
    Examples:
      tailrace position show orders.yaml
      tailrace position show orders.yaml --at "yesterday 14:05"
      tailrace position show orders.yaml --at event:7f9c24e8 --json
    """
    wiring, stored = _opened(file)
    entries = position_history.read(wiring.kafka)
    point = parse(at, _now()) if at else None
    oldest: Position | None = None
    trouble: TailraceError | None = None
    try:
        log = open_log(wiring, stored, entries)
        try:
            oldest = log.oldest
            position = stored if point is None else resolve(wiring, log, entries, point)
        finally:
            log.close()
    except TailraceError as error:
        if point is not None:
            raise
        # The stored position can be shown even if the database has a problem.
        position, trouble = stored, error
    near = _nearest(entries, position)
    offsets = position_history.offsets_at(entries, near) if near else {}
    if as_json:
        emit_json({
            "pipeline": wiring.settings.pipeline, **_as_json(position), "stored": to_stored(position),
            "oldest": _as_json(oldest) if oldest else None,
            "offsets": offsets, "offsets_at": None if near is None else _as_json(near.position),
            "trouble": None if trouble is None else {"error": trouble.code, "what": trouble.what},
        })  # fmt: skip
        return
    lines = [("pipeline", wiring.settings.pipeline), ("position", str(position))]
    if position.at_ms:
        lines.append(
            ("time", f"{format_time(position.at_ms)} ({human_seconds(time.time() - position.at_ms / 1000)} ago)")
        )
    if oldest is not None:
        reach = f", {human_seconds((stored.at_ms - oldest.at_ms) / 1000)} before" if oldest.at_ms else ""
        lines.append(("oldest", f"{describe_position(oldest)}{reach}: the log can be read again from there"))
    if trouble is not None:
        lines.append(("log", f"{trouble.code}: {trouble.what}"))
    for name, value in lines:
        say(f"{name:<10} {value}")
    if near is None:
        say("The position history has no entry there, so the offsets of the topics are not known.")
        return
    table(f"offsets at {describe_position(near.position)}: what was published before is below them", _rows(offsets))


@app.command()
def history(
    file: Path = FILE,
    since: str = typer.Option("", "--from", help="Entries since that time: 24h, yesterday 14:05, …."),
    limit: int = typer.Option(NEWEST, "--limit", min=1, help="Show only the newest entries, this many."),
    as_json: bool = AS_JSON,
) -> None:
    """List the position history of a pipeline: one entry per minute while it moved, kept for 90 days.

    \b
    Examples:
      tailrace position history orders.yaml
      tailrace position history orders.yaml --from "yesterday 14:00" --limit 500
      tailrace position history orders.yaml --json | jq -r .position
    """
    wiring = wire(load_pipeline(file))
    entries = position_history.read(wiring.kafka)
    if since:
        moment = parse(since, _now())
        begin = getattr(moment, "at_ms", None)
        if begin is None:
            raise ConfigError(f"{since!r} is not a time", remedy="Write 24h, yesterday 14:05 or 2026-03-01T12:00:00Z.")
        entries = [entry for entry in entries if entry.sampled_ms >= begin]
    left_out = max(0, len(entries) - limit)
    entries = entries[-limit:]
    if as_json:
        for entry in entries:
            emit_json({"noted_ms": entry.sampled_ms, **_as_json(entry.position), "offsets": entry.offsets,
                       "stored": to_stored(entry.position)})  # fmt: skip
        return
    table(
        f"{wiring.settings.pipeline}: position history, {len(entries)} {'entry' if len(entries) == 1 else 'entries'}",
        [
            {
                "noted": format_time(entry.sampled_ms),
                "position": str(entry.position),
                "source's clock": format_time(entry.position.at_ms),
                "offsets": _short(entry.offsets),
            }
            for entry in entries
        ],
    )
    if left_out:
        say(f"{left_out} older entries: --limit shows more")


@app.command("reset")
def reset_(
    file: Path = FILE,
    to: str = typer.Option(..., "--to", metavar="POINT", help="24h, an LSN, a cluster time, event:ID, oldest, …."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask for confirmation."),
    as_json: bool = AS_JSON,
) -> None:
    """Rewind a stopped pipeline: when it is started again, it publishes everything since that point once more.

    Events that were published before have the header tailrace.replay; projections of the kit skip what they have
    applied. If the log no longer reaches back that far, the command fails and names the nearest possible points. A
    position is never moved forward. To see first what would be published, or to publish a part of it next to the
    running pipeline: `tailrace replay plan`.

    \b
    Examples:
      tailrace position reset orders.yaml --to 2h
      tailrace position reset orders.yaml --to 0/1A2B3C8 --yes
      tailrace position reset users.yaml --to event:7f9c24e8
    """
    wiring, stored = _opened(file)
    point = parse(to, _now())
    require_stopped(wiring)
    entries = position_history.read(wiring.kafka)
    log = open_log(wiring, stored, entries)
    try:
        target = resolve(wiring, log, entries, point)
        if target.is_alike(stored) and target.progress == stored.progress:
            raise ConfigError(
                f"{point} is the pipeline's current position: {describe_position(stored)}",
                why="The log does not reach back any further, or nothing was published since this point.",
                remedy="Nothing was changed. `source.replay_window` keeps more of the log from now on (Postgres); "
                "`tailrace replay plan FILE --from-table` publishes from the outbox what the log no longer has.",
            )
        if not yes:
            change = f"from {describe_position(stored)} to {describe_position(target)}"
            _confirm(f"Rewind {wiring.settings.pipeline} {change}?", as_json=as_json)
        done = reset(wiring, log, target)
    finally:
        log.close()
    if as_json:
        emit_json({"replay": done.id, "before": _as_json(done.before), "position": _as_json(done.to)})
        return
    say(f"rewound from {describe_position(done.before)}")
    say(f"          to {describe_position(done.to)}")
    say(f"`tailrace run {file}` publishes everything since then again, with the header tailrace.replay={done.id}")


def _opened(file: Path) -> tuple[Wiring, Position]:
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)
    wiring = wire(load_pipeline(file))
    stored = read_kafka_status(wiring.kafka).position
    if stored is None:
        raise ConfigError(
            f"the pipeline {wiring.settings.pipeline} has no stored position",
            why="It was never started, or its offsets topic is lost or was changed.",
            remedy="Start it, or correct kafka.offsets_topic.",
        )
    return wiring, stored


def _confirm(question: str, *, as_json: bool) -> None:
    if as_json:
        raise ConfigError("--json cannot ask for confirmation", remedy="Add --yes.")
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} There is no terminal to ask on", remedy="Check it, then add --yes.")
    if not typer.confirm(question):
        raise typer.Abort


def _now() -> datetime:
    return datetime.now().astimezone()


def _nearest(entries: list[PositionEntry], position: Position) -> PositionEntry | None:
    """Returns the last entry of this log that is not beyond the position."""
    same = [entry for entry in entries if entry.position.is_alike(position)]
    return next((entry for entry in reversed(same) if entry.position.progress <= position.progress), None)


def _as_json(position: Position) -> dict[str, Any]:
    return {"position": str(position), "at_ms": position.at_ms}


def _rows(offsets: Offsets) -> list[dict[str, object]]:
    return [
        {"topic": topic, "partition": number, "offset": end}
        for topic, ends in sorted(offsets.items())
        for number, end in sorted(ends.items())
    ]


def _short(offsets: Offsets) -> str:
    return ", ".join(f"{topic}: {sum(ends.values())}" for topic, ends in sorted(offsets.items()) if sum(ends.values()))
