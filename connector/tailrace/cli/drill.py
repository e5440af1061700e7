"""`tailrace drill`: injects faults on a staging pipeline's servers, and checks that nothing is lost or doubled."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from tailrace.cli.output import emit_json, has_colour, say
from tailrace.cli.stop_signals import interruptible
from tailrace.errors import ConfigError
from tailrace.testkit.drill.run import Drill, DrillResult, StepResult
from tailrace.testkit.drill.steps import Step

COUNTS = ("missing", "duplicated", "phantom", "misplaced", "out_of_order", "positions")
"""The errors of the oracle's verdict."""
_RED, _GREEN, _RESET = "\x1b[1;31m", "\x1b[1;32m", "\x1b[0m"


def drill(
    file: Path = typer.Argument(..., metavar="FILE", help="The settings of a staging pipeline, such as orders.yaml."),
    staging: bool = typer.Option(
        False, "--staging", help="State that these servers are not production. Nothing happens without it."
    ),
    yes: bool = typer.Option(False, "--yes", help="Do not ask."),
    steps: list[str] = typer.Option([], "--step", metavar="STEP", help="Only this step; repeatable."),
    rate: float = typer.Option(20.0, "--rate", min=1, max=1000, help="Transactions a second that the drill writes."),
    hold: float = typer.Option(
        5.0, "--hold", min=0.5, max=600, help="Seconds that a server is out of reach, or the connector suspended."
    ),
    clean: bool = typer.Option(False, "--clean", help="Only remove what an interrupted drill has left."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object; everything else goes to stderr."),
) -> int:
    """Break a staging pipeline's connections on purpose, with events of its own, and check the result.

    Uses the pipeline's database, Kafka, logins and delivery mode, but none of its data: it creates an outbox next to
    the pipeline's, a slot and topics named <pipeline>-drill, runs its own connector, and writes its own events. Then it
    kills the connector, cuts its connections, ends its replication session, writes bad payloads, and starts a second
    instance. After each step it waits until new events are published, and compares what was committed with what
    consumers read. The pipeline itself may run meanwhile and is not touched.

    Everything it creates is removed at the end, also after Ctrl-C. If it is killed, the next drill removes what is
    left, or --clean does.

    Exit codes: 0 passed, 1 an event is missing, duplicated or out of order, or the pipeline did not recover; 2 wrong
    usage or settings, 3 a server is not available or refuses, 130 interrupted.

    \b
    Examples:
      tailrace drill orders.yaml --staging
      tailrace drill orders.yaml --staging --yes --json | jq .ok
      tailrace drill orders.yaml --staging --step kill --step kafka-away --hold 30
      tailrace drill orders.yaml --staging --clean
    """
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)
    out = sys.stderr if as_json else sys.stdout
    seed = random.randrange(1, 10_000)  # noqa: S311 - a workload, not a secret
    with interruptible(), Drill(file, rate=rate, hold=hold, seed=seed) as run:
        wanted = run.steps(steps)
        if not staging:
            raise ConfigError(
                f"a drill of {run.plan.pipeline} must be allowed",
                why="It ends sessions and creates tables, slots and topics, which is not for production.",
                remedy="Check that these are staging servers, then add --staging.",
            )
        if clean:
            _show_removed(run.clean(), as_json=as_json)
            return 0
        for line in _announcement(run, wanted):
            say(line, out)
        _confirm(run.plan.name, yes=yes, as_json=as_json)
        result = _run(run, steps, out)
    if as_json:
        emit_json(result.as_json())
    else:
        _show_verdict(result)
    return 0 if result.ok else 1


def _run(run: Drill, steps: Sequence[str], out: Any) -> DrillResult:  # noqa: ANN401 - a stream
    def begin(step: Step) -> None:
        say(f"  {step.name}: {step.text} …", out)
        out.flush()

    def end(result: StepResult) -> None:
        say(f"    {_line(result)}", out)
        out.flush()

    try:
        return run.run(begin, end, steps)
    finally:
        # Instances and writers end first: they use what is removed.
        run.end()
        for removed in run.clean():
            say(f"  removed {removed}", out)


def _announcement(run: Drill, steps: Sequence[Step]) -> list[str]:
    plan = run.plan
    created = [f"topics {plan.name}.*", f"{'collection' if plan.is_mongo else 'table'} {plan.outbox}"]
    if plan.slot:
        created.append(f"slot and publication {plan.slot}")
    return [
        f"drill of {plan.pipeline}, as pipeline {plan.name}",
        f"  database  {run.outbox.server}",
        f"  Kafka     {run.settings.kafka.bootstrap}, {run.settings.kafka.delivery}",
        f"  creates   {', '.join(created)}; all is removed at the end",
        f"  steps     {', '.join(step.name for step in steps)}",
        "",
    ]


def _confirm(name: str, *, yes: bool, as_json: bool) -> None:
    if yes:
        return
    if as_json:
        raise ConfigError("--json cannot ask for confirmation", remedy="Add --yes.")
    if not sys.stdin.isatty():
        raise ConfigError("there is no terminal to ask on", remedy="Check what the drill does, then add --yes.")
    if typer.prompt(f"Type {name} to start") != name:
        raise typer.Abort


def _line(result: StepResult) -> str:
    if not result.ok and not result.recovery_seconds:
        return f"FAILED: {result.detail}"
    wrong = [f"{name.replace('_', ' ')} {result.verdict[name]}" for name in COUNTS if result.verdict[name]]
    counts = ", ".join(wrong) or "nothing missing, duplicated or out of order"
    verdict = "ok" if result.ok else "FAILED"
    return (
        f"{verdict}: {result.detail}; recovered after {result.recovery_seconds:.1f} s; "
        f"{result.verdict['published']} published, {result.verdict['dead_lettered']} dead-lettered, {counts}"
    )


def _show_verdict(result: DrillResult) -> None:
    colour, reset = ("", "") if not has_colour(sys.stdout) else (_GREEN if result.ok else _RED, _RESET)
    text = "PASSED" if result.ok else "FAILED"
    slowest = max((step.recovery_seconds for step in result.steps[1:]), default=0.0)
    say()
    say(f"{colour}{text}{reset} {len(result.steps) - 1} faults; longest recovery {slowest:.1f} s")
    if result.ok and result.delivery == "at_least_once":
        say("duplicates are allowed: kafka.delivery is at_least_once")


def _show_removed(removed: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        emit_json({"removed": list(removed)})
        return
    for name in removed:
        say(f"removed {name}")
    if not removed:
        say("nothing to remove")
