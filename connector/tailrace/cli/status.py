"""`tailrace status`: shows the state of a pipeline as Kafka and the database report it."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from typing import Any

import typer

from tailrace.check.health import RUNNING, PipelineHealth, ago, read_health
from tailrace.check.result import clock_difference, human_bytes, human_seconds
from tailrace.cli.output import emit_json, has_colour, say
from tailrace.config.load import load_pipeline
from tailrace.sources.postgres.observation import NOISE_BYTES

REFRESH_SECONDS = 2.0
_CLEAR, _RED, _GREEN, _RESET = "\x1b[H\x1b[2J", "\x1b[1;31m", "\x1b[1;32m", "\x1b[0m"


def status(
    file: Path = typer.Argument(..., metavar="FILE", help="The pipeline's settings, such as orders.yaml."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object (with --watch, one per line)."),
    watch: bool = typer.Option(False, "--watch", help="Refresh every 2 s, until Ctrl-C."),
) -> int:
    """Show the state of a pipeline, its position and its lag.

    RUNNING: the connector announced it, and the database sees it read. NOT RUNNING: it was announced, but nobody reads.
    RETRYING, FAILED and STOPPED are the last announcement. UNKNOWN: a server does not answer or show sessions.
    Standby instances are listed.

    The lag begins at the stored position. For Postgres it extends to the end of the WAL, in bytes and seconds; a few kB
    of other WAL are not a lag, because an idle pipeline skips them every 5 s. For MongoDB it is the age of the first
    unpublished change.

    Exit codes: 0 if RUNNING, 1 otherwise.

    Examples:

        tailrace status orders.yaml

        tailrace status orders.yaml --watch

        tailrace status orders.yaml --json | jq .lag_seconds
    """
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)
    settings = load_pipeline(file)
    pause = threading.Event()
    while True:
        health = read_health(settings)
        if as_json:
            emit_json(health.to_json())
        else:
            if watch and sys.stdout.isatty():
                say(_CLEAR)
            _print(health)
        if not watch:
            return 0 if health.state == RUNNING else 1
        pause.wait(REFRESH_SECONDS)


def _print(health: PipelineHealth) -> None:
    for name, value in _lines(health):
        say(f"{name:<12} {value}")
    say()
    sys.stdout.flush()


def _lines(health: PipelineHealth) -> list[tuple[str, str]]:
    colour, reset = ("", "") if not has_colour(sys.stdout) else (_GREEN if health.state == RUNNING else _RED, _RESET)
    state = f"{colour}{health.state}{reset}"
    if health.since_ms:
        state += f" since {ago(health.since_ms)}"
    lines = [("pipeline", health.pipeline), ("state", state)]
    if health.detail:
        lines.append(("", health.detail))
    if error := health.error:
        lines += [("error", f"{error.get('code')}: {error.get('what')}")]
        lines += [(part, str(error[part])) for part in ("why", "remedy") if error.get(part)]
    if announced := health.announced:
        process = f"process {announced.get('pid')} on {announced.get('host')}"
        lines.append(("instance", f"{process}, version {announced.get('version')}"))
    if other := health.standby:
        lines.append(("standby", _standby(other)))
    if health.position:
        lines.append(("position", health.position))
    if health.lag_seconds is not None:
        size = "" if health.lag_bytes is None else f"{human_bytes(health.lag_bytes)}, "
        late = human_seconds(health.lag_seconds)
        lines.append(("lag", f"{size}{late}{' at most' if health.lag_seconds else ''}"))
    lines += _dead_letter_lines(health)
    if parked := health.parked:
        lines.append(
            ("parked", f"{parked['keys']} keys, the first since {ago(parked['since_ms'])}; see `tailrace dlq parked`")
        )
    if health.source not in health.away:
        lines += _slot_lines(health) if health.source == "postgres" else _oplog_lines(health)
    if health.clock_ahead_seconds and (difference := clock_difference(health.clock_ahead_seconds)):
        lines.append(("clock", f"the database's is {difference}"))
    lines += [("no answer", f"{server}: {why}") for server, why in health.away.items()]
    return lines


def _standby(other: dict[str, Any]) -> str:
    """Describes an instance that waits for the running one, or fails meanwhile."""
    who = f"process {other.get('pid')} on {other.get('host')}"
    if other.get("state") == "WAITING":
        return f"{who} waits to take over"
    error = other.get("error") or {}
    return f"{who} is {other.get('state')}: {error.get('code')}: {error.get('what')}"


def _dead_letter_lines(health: PipelineHealth) -> list[tuple[str, str]]:
    if (letters := health.dead_letters) is None:
        return []
    if letters["more"] and not letters["open"]:
        return [("dead letters", "too many to count quickly; see `tailrace dlq parked`")]
    by_reason = ", ".join(f"{number} {reason}" for reason, number in letters["by_reason"].items())
    total = f"more than {letters['open']} open" if letters["more"] else f"{letters['open'] or 'none'} open"
    return [("dead letters", f"{total}: {by_reason}" if by_reason else total)]


def _slot_lines(health: PipelineHealth) -> list[tuple[str, str]]:
    if (slot := health.slot) is None:
        return [("slot", "none")]
    use = f"read by server process {slot['active_pid']}" if slot["active_pid"] else "not in use"
    if slot["invalidation"] or slot["wal_status"] == "lost":
        use = f"INVALIDATED ({slot['invalidation'] or 'wal_removed'})"
        return [("slot", f"{slot['name']}, {use}"), ("wal kept", "none; see `tailrace recover plan`")]
    room = slot["safe_bytes"]
    left = "without a limit" if room is None else f"invalidated after {human_bytes(room)} more"
    kept = human_bytes(slot["retained_bytes"])
    if slot["held_bytes"] > NOISE_BYTES:
        kept += f", {human_bytes(slot['held_bytes'])} of it published and kept for replays"
    return [("slot", f"{slot['name']}, {use}"), ("wal kept", f"{kept}; {left}")]


def _oplog_lines(health: PipelineHealth) -> list[tuple[str, str]]:
    oplog = health.oplog or {}
    if oplog.get("reaches_back") is False:
        return [("oplog", "LOST: it no longer reaches back to the stored position")]
    window, room = oplog.get("window_seconds"), oplog.get("room_seconds")
    if window is None:
        return [("oplog", "reaches back to the stored position")] if oplog.get("reaches_back") else []
    shown = f"reaches back {human_seconds(window)}"
    if not oplog["full"]:
        shown += ", and is not full yet"
    elif room is not None:
        shown += f"; the stored position is lost after {human_seconds(room)} more"
    return [("oplog", shown)]
