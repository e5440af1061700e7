"""`tailrace recover`: publishes what was missed when the log was lost, from the outbox, and nothing twice."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from pathlib import Path

import typer

from tailrace.cli import EXIT_INTERRUPTED
from tailrace.cli.dlq.selection import moment
from tailrace.cli.output import emit_json, say
from tailrace.cli.recover import view
from tailrace.cli.stop_signals import interruptible, run_beside, stoppable
from tailrace.config.load import load_pipeline
from tailrace.errors import ConfigError, KafkaUnavailable
from tailrace.recovery.apply import RecoveryRun, fence
from tailrace.recovery.plan import Case, RecoveryPlan, RecoveryPlanner
from tailrace.recovery.row_filter import undecided
from tailrace.recovery.rules import RowDecision
from tailrace.state.ownership import Ownership
from tailrace.worker.wiring import wire

app = typer.Typer(
    help="Recover a pipeline whose log was lost: slot dropped or invalidated, oplog rolled, database restored.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)
FILE = typer.Argument(..., metavar="FILE", help="The pipeline's settings, such as orders.yaml.")
SINCE = typer.Option("", "--since", help="Leave out rows created before then: 30m, 2h, 3d ago, or an ISO time.")
FORCE = typer.Option(False, "--force", help="Search for missing events even if the pipeline could start.")
AS_JSON = typer.Option(False, "--json", help="Print one JSON object instead of a report.")


@app.callback()
def _quiet() -> None:
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)


@app.command("plan")
def show(file: Path = FILE, since: str = SINCE, force: bool = FORCE, as_json: bool = AS_JSON) -> int:
    """Show what is wrong, how large the gap is, and what `apply` would do. Changes nothing.

    Reads the whole outbox, and what Kafka holds of it. A row counts as published if it is on a topic, in the dead
    letters or behind a parked key, or if the position history shows that the pipeline had passed it. The other rows
    are the gap.

    Exit codes: 0 nothing is wrong, or it can be recovered; 1 some rows are undecided: see --since.

    \b
    Examples:
      tailrace recover plan orders.yaml
      tailrace recover plan orders.yaml --since 2026-03-01T12:00:00Z --json
    """
    planner = RecoveryPlanner(wire(load_pipeline(file)), since_ms=moment(since, time.time_ns() // 1_000_000))
    try:
        case = planner.case()
        if case.error is None and not force:
            return _show_nothing_to_recover(case, as_json=as_json)
        plan = _planned(planner, case, as_json=as_json)
    finally:
        planner.close()
    if as_json:
        emit_json(view.plan_json(planner.wiring.settings.pipeline, plan))
    else:
        view.show_plan(planner.wiring.settings.pipeline, plan)
    return 1 if plan.tally.undecided else 0


@app.command("apply")
def apply_plan(
    file: Path = FILE,
    since: str = SINCE,
    force: bool = FORCE,
    yes: bool = typer.Option(False, "--yes", help="Do not ask for confirmation."),
    as_json: bool = AS_JSON,
) -> int:
    """Publish what was missed, and nothing twice; fix slot and publication. Then `tailrace run` continues.

    Makes the plan first, shows it and asks for confirmation. The pipeline must be stopped; any running instance is
    fenced. If it is killed, run it again: it publishes the rest. Until then `tailrace run` refuses to start. SIGTERM
    and Ctrl-C finish the current batch and exit within 8 s.

    Exit codes: 0 done; 2 wrong usage, or nothing to recover; 3 refused, or a server is not available; 4 another
    recovery took over; 130 interrupted: run it again.

    \b
    Examples:
      tailrace recover apply orders.yaml
      tailrace recover apply orders.yaml --yes --json
    """
    with interruptible():
        return _apply_plan(file, since, force=force, yes=yes, as_json=as_json)


def _apply_plan(file: Path, since: str, *, force: bool, yes: bool, as_json: bool) -> int:
    planner = RecoveryPlanner(wire(load_pipeline(file)), since_ms=moment(since, time.time_ns() // 1_000_000))
    name = planner.wiring.settings.pipeline
    ownership = Ownership(planner.wiring.kafka, uuid.uuid4().hex)
    try:
        try:
            begun = _case_to_recover(planner, force=force).stored is not None
        except KafkaUnavailable:
            begun = False  # a killed recovery may have left a transaction open; fencing aborts it
        fence(planner.wiring, ownership if begun else None)
        # Only now the position of another recovery or of the pipeline is final.
        plan = _planned(planner, _case_to_recover(planner, force=force), as_json=as_json)
        if plan.tally.undecided:
            raise undecided(plan.tally)
        if not yes:
            _require_terminal(plan)
            view.show_plan(name, plan, sys.stderr)
            if not typer.confirm(f"Recover {name}?", err=True):
                say("Nothing was done.", sys.stderr)
                return 1
        began = time.monotonic()
        with view.progress("reading the outbox", plan.tally.rows, quiet=as_json) as on_progress, stoppable() as stop:
            applying = RecoveryRun(
                planner, plan, ownership=ownership, wakeup=stop.wakeup, stopping=stop.wanted, on_progress=on_progress
            )
            done = run_beside(applying.run)
    finally:
        ownership.release()
        planner.close()
    if as_json:
        emit_json(view.recovered_json(name, plan, done, time.monotonic() - began))
    else:
        view.show_recovered(name, done, time.monotonic() - began)
    return 0 if done.complete else EXIT_INTERRUPTED


def _case_to_recover(planner: RecoveryPlanner, *, force: bool) -> Case:
    """Returns the case to recover from; raises if there is none, or if the pipeline is running."""
    case = planner.case()
    _require_idle(planner.wiring.settings.pipeline, case)
    if case.error is None and not force:
        raise ConfigError(
            "there is nothing to recover: a start would continue where the pipeline was",
            remedy="Run `tailrace run FILE`. To search for missing events nevertheless, use --force, best with "
            "--since.",
        )
    return case


def _planned(planner: RecoveryPlanner, case: Case, *, as_json: bool) -> RecoveryPlan:
    with view.progress("comparing the outbox with Kafka", None, quiet=as_json) as on_progress:
        return planner.plan(case, on_progress=on_progress)


def _show_nothing_to_recover(case: Case, *, as_json: bool) -> int:
    at = str(case.stored) if case.stored else None
    if as_json:
        emit_json({"case": None, "position": at, "running": case.running})
    elif case.stored is None:
        say("Nothing to recover: the pipeline was never started.")
    else:
        say(f"Nothing to recover: the pipeline {'is running' if case.running else 'can be started'}, at {at}.")
    return 0


def _require_idle(name: str, case: Case) -> None:
    if case.running:
        raise ConfigError(
            f"the pipeline {name} is running",
            why="Events that it publishes while the gap is determined would be published twice.",
            remedy="Stop it first; see `tailrace status`.",
        )


def _require_terminal(plan: RecoveryPlan) -> None:
    if not sys.stdin.isatty():
        raise ConfigError(
            f"publish {plan.tally.decisions[RowDecision.MISSED]:,} events? There is no terminal to confirm it",
            remedy="Check them with `tailrace recover plan`, then add --yes.",
        )
