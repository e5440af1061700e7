"""`tailrace replay`: plans and applies replays, and compares shadow topics with the original ones."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from tailrace.check.health import read_kafka_status
from tailrace.cli.output import emit_json, say
from tailrace.cli.replay import view
from tailrace.config.load import load_pipeline
from tailrace.errors import ConfigError
from tailrace.replay.apply import ReplayRun, is_done, replay_options, require_same
from tailrace.replay.diff import compare
from tailrace.replay.estimate import NOWHERE
from tailrace.replay.plan import ReplayPlan, Selection, read_plan
from tailrace.replay.plan_source import SelectedSource, share_done
from tailrace.replay.planner import ReplayRequest, make_plan
from tailrace.replay.reset import reset
from tailrace.replay.source_log import open_log
from tailrace.state import offsets, position_history
from tailrace.worker.wiring import Wiring, wire

app = typer.Typer(
    help="Plan and run a replay, or diff a shadow replay against the live topics.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)
PLAN = typer.Argument(..., metavar="PLAN", help="The file that `tailrace replay plan` wrote.")
SETTINGS = typer.Option(None, "--settings", metavar="FILE", help="The pipeline's settings, if they were moved.")
AS_JSON = typer.Option(False, "--json", help="Print one JSON object.")
_suffix = re.compile(r"[a-zA-Z0-9._-]{1,40}").fullmatch


@app.callback()
def _quiet() -> None:
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)


@app.command("plan")
def show(
    file: Path = typer.Argument(..., metavar="FILE", help="The pipeline's settings, such as orders.yaml."),
    since: str = typer.Option("", "--from", metavar="POINT", help="Where to start: 24h, an LSN, event:ID, oldest, …."),
    until: str = typer.Option("", "--to", metavar="POINT", help="Where to end; default: the pipeline's position."),
    types: list[str] = typer.Option([], "--type", help="Only events of this type; a shell pattern, repeatable."),
    keys: list[str] = typer.Option([], "--key", help="Only events with this key; a shell pattern, repeatable."),
    topics: list[str] = typer.Option([], "--topic", help="Only events for this topic; a shell pattern, repeatable."),
    ids: list[str] = typer.Option([], "--id", help="Only the event with this id; repeatable."),
    from_table: bool = typer.Option(False, "--from-table", help="Read the table or collections instead of the log."),
    from_archive: bool = typer.Option(
        False, "--from-archive", help="Read the archive instead of the log (docs/archive.md)."
    ),
    shadow: str = typer.Option("", "--shadow", metavar="SUFFIX", help="Publish to topics with this suffix instead."),
    in_place: bool = typer.Option(False, "--in-place", help="Rewind the pipeline itself; it must be stopped."),
    consumers: str = typer.Option(
        "", "--consumers", metavar="APP", help="Check a projection app, given as module:attribute."
    ),
    output: Path | None = typer.Option(
        None, "--output", help="Where to write the plan, a file or a folder; default: next to the settings."
    ),
    as_json: bool = AS_JSON,
) -> int:
    """Make a plan: what a replay would publish, from where, and with what result. Writes a file, changes nothing else.

    Events come from the log, as far back as it reaches (source.replay_window; MongoDB's oplog), else from the table or
    the collections by the time of a row, else from the archive. They are read without publishing: counted by type and
    topic, and validated with today's rules and schemas. With --consumers, the command checks whether the markers of
    projections reach back far enough.

    Points: 24h (ago), "yesterday 14:05", 2026-03-01T12:00Z, an LSN, a cluster time, a resume token, event:ID
    (right before that event), oldest.

    Exit codes: 0 plan written, 2 wrong usage or settings, 3 a server is not available or refuses.

    \b
    Examples:
      tailrace replay plan orders.yaml --from 2h
      tailrace replay plan orders.yaml --from "yesterday 14:05" --to "yesterday 15:00" --type OrderPlaced
      tailrace replay plan orders.yaml --from 24h --shadow .shadow
      tailrace replay plan orders.yaml --from 90d --from-table --key 'order-7*'
      tailrace replay plan orders.yaml --id 7f9c24e8 --id 0b1d77aa
      tailrace replay plan orders.yaml --from event:7f9c24e8 --in-place
    """
    request = ReplayRequest(
        since,
        until,
        Selection(tuple(types), tuple(keys), tuple(topics), tuple(ids)),
        from_table=from_table,
        from_archive=from_archive,
        target="in_place" if in_place else "shadow" if shadow else "same",
        suffix=shadow,
    )
    _require_valid(request, in_place=in_place)
    wiring = wire(load_pipeline(file))
    with view.bar("reading", quiet=as_json) as on_progress:

        def progress(source: SelectedSource, events: int) -> None:
            on_progress(share_done(source.position, source.start, source.end, 0), f"{events:,} events")

        plan = make_plan(wiring, "", request, on_progress=progress)
    where = output or file.parent
    if where.is_dir():
        where = where / f"{file.stem}.replay-{plan.id}.json"
    plan = replace(plan, settings=os.path.relpath(file.resolve(), where.resolve().parent))
    if consumers:
        plan = replace(plan, consumers=tuple(_horizons(consumers, plan)))
    plan.write(where)
    if as_json:
        emit_json({**plan.to_json(), "file": str(where)})
    else:
        view.print_plan(plan, where)
    return 0


@app.command("apply")
def apply_plan(file: Path = PLAN, settings: Path | None = SETTINGS, as_json: bool = AS_JSON) -> int:
    """Apply a plan: each of its events is published once more, marked with the id of the replay.

    If it is killed, run it again: it continues where it was, and nothing is published twice. The pipeline may run
    meanwhile and is not disturbed. For a plan made with --in-place it must be stopped, and publishes the events itself
    when it is started again. Records have the header tailrace.replay, and their original position in `position`.

    Exit codes: 0 done, or done before; 2 wrong usage, 3 a server is not available or refuses, 4 another apply took
    over.

    \b
    Examples:
      tailrace replay apply orders.replay-k7xq2m.json
      tailrace replay apply orders.replay-k7xq2m.json --json
    """
    plan = read_plan(file)
    wiring = _assembled(plan, file, settings)
    if plan.target == "in_place":
        return _rewind(wiring, plan, as_json=as_json)
    applying = ReplayRun(wiring, plan)
    stored = applying.stored()
    if is_done(plan, stored):
        return _already_done(plan, as_json=as_json)
    begun = time.monotonic()
    with view.bar("publishing", quiet=as_json) as on_progress, _interrupted_by_sigterm():
        done = applying.run(
            lambda now: on_progress(
                now.share, f"{now.published:,} events{f', waiting: {now.waiting}' if now.waiting else ''}"
            )
        )
    if as_json:
        fields = {"replay": plan.id, "pipeline": plan.pipeline, "done": True, "continued": bool(applying.continued),
                "planned": plan.estimate.events, "published": done.published, "dead_letters": done.dead_letters,
                "known_letters": done.already_dead_lettered, "seconds": round(time.monotonic() - begun, 3)}  # fmt: skip
        emit_json(fields)
    else:
        view.print_applied(plan, done, file, continued=bool(applying.continued))
    return 0


@app.command("diff")
def diff(file: Path = PLAN, settings: Path | None = SETTINGS, as_json: bool = AS_JSON) -> int:
    """Compare the shadow topics of a plan with the original ones, event by event.

    Reports events that are only in one of them, that have another value, key, partition or topic, and those in the
    shadow's dead letters. Changes nothing.

    Exit codes: 0 no differences, 1 differences, 2 wrong usage, 3 a server is not available or refuses.

    \b
    Examples:
      tailrace replay diff orders.replay-k7xq2m.json
      tailrace replay diff orders.replay-k7xq2m.json --json | jq .value_changed
    """
    plan = read_plan(file)
    wiring = _assembled(plan, file, settings)
    found = compare(wiring, plan)
    if as_json:
        emit_json({"replay": plan.id, "pipeline": plan.pipeline, **view.differences(found)})
    else:
        view.print_differences(found)
    return 1 if found.total else 0


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Handles SIGTERM like Ctrl-C: the current batch is finished, and no open transaction blocks readers."""

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _require_valid(request: ReplayRequest, *, in_place: bool) -> None:
    elsewhere = request.from_table or request.from_archive
    if in_place and (request.selection.is_partial or request.until or request.suffix or elsewhere):
        raise ConfigError(
            "--in-place cannot be combined with other selections",
            why="A rewound pipeline publishes everything from that position on.",
            remedy="Use --from alone, or replay next to the pipeline, without --in-place.",
        )
    if request.from_table and request.from_archive:
        raise ConfigError("--from-table and --from-archive cannot be combined", remedy="Make a plan for each.")
    if request.suffix and not _suffix(request.suffix):
        raise ConfigError(
            f"{request.suffix!r} cannot be the end of a topic's name",
            remedy="Use letters, digits, `.`, `_` and `-`, at most 40: --shadow .shadow",
        )


def _assembled(plan: ReplayPlan, file: Path, settings: Path | None) -> Wiring:
    wiring = wire(load_pipeline(settings or file.resolve().parent / plan.settings))
    require_same(wiring, plan)
    return wiring


def _horizons(name: str, plan: ReplayPlan) -> list[dict[str, Any]]:
    from tailrace.cli.project.command import load_app
    from tailrace.replay.targets import horizons

    topics = [topic + plan.suffix for topic in plan.estimate.by_topic if topic != NOWHERE]
    return asyncio.run(horizons(load_app(name), topics, plan.estimate.first_ms))


def _rewind(wiring: Wiring, plan: ReplayPlan, *, as_json: bool) -> int:
    own = replay_options(wiring.kafka, plan)
    if offsets.read(own) is not None:
        return _already_done(plan, as_json=as_json)
    stored = read_kafka_status(wiring.kafka).position
    if stored is None:
        raise ConfigError("the pipeline has no stored position", remedy="Make a new plan. Nothing was changed.")
    log = open_log(wiring, stored, position_history.read(wiring.kafka))
    try:
        done = reset(wiring, log, plan.start, id_=plan.id, note=offsets.record(own, plan.end))
    finally:
        log.close()
    fields = {
        "replay": plan.id,
        "pipeline": plan.pipeline,
        "done": True,
        "from": str(done.to),
        "until": str(done.until),
    }
    if as_json:
        emit_json(fields)
    else:
        say(f"replay {plan.id}: {plan.pipeline} was rewound from {done.before} to {done.to}.")
        say(
            f"Start it: it publishes everything from there on; events up to {done.until} have the header "
            "tailrace.replay."
        )
    return 0


def _already_done(plan: ReplayPlan, *, as_json: bool) -> int:
    if as_json:
        emit_json({"replay": plan.id, "pipeline": plan.pipeline, "done": True, "published": 0, "dead_letters": 0})
    else:
        say(f"replay {plan.id} was applied already; nothing was published. To replay again, make a new plan.")
    return 0
