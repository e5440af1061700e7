"""`tailrace check`: checks settings and servers before a start."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import typer

from tailrace.check.preflight import passed, preflight
from tailrace.check.result import CheckResult, State
from tailrace.cli.output import emit_json, say, table


def check(
    file: Path = typer.Argument(..., metavar="FILE", help="The pipeline's settings, such as orders.yaml."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    offline: bool = typer.Option(False, "--offline", help="Check the files only, without connecting to a server."),
) -> int:
    """Check settings, database and Kafka, and show how to fix problems.

    Changes nothing and does not disturb a running pipeline. Each check is OK, WARN (works, but a careful operator would
    change it) or FAIL (stops the pipeline, now or soon), with the SQL or the command that fixes it.

    `tailrace doctor` checks more: settings of the servers, topics, rights, events and the worker.

    Exit codes: 0 without a FAIL, 1 with one.

    Examples:

        tailrace check orders.yaml

        tailrace check orders.yaml --offline     (in continuous integration)

        tailrace check orders.yaml --json | jq -r '.checks[].remedy'
    """
    logging.getLogger("librdkafka").setLevel(logging.CRITICAL)
    checks = preflight(file, offline=offline)
    if as_json:
        listed = [
            {
                "name": found.name,
                "code": found.code,
                "state": found.state.value,
                "found": found.found,
                "remedy": found.remedy,
            }
            for found in checks
        ]
        emit_json({"ok": passed(checks), "checks": listed})
    else:
        _print(file, checks)
    return 0 if passed(checks) else 1


def _print(file: Path, checks: list[CheckResult]) -> None:
    rows = [{"state": found.state.value, "check": found.name, "found": found.found} for found in checks]
    table(str(file), rows)
    # Below the table, not wrapped, to be copied.
    for found in checks:
        if found.remedy:
            say()
            say(f"{found.state.value} {found.name}: {found.found}")
            say(f"  remedy: {found.remedy}")
    failures, warnings = (sum(found.state is state for found in checks) for state in (State.FAIL, State.WARN))
    say()
    say(f"{len(checks)} checks: {failures or 'none'} failed, {warnings or 'no'} warning{'s' * (warnings != 1)}.")
    sys.stdout.flush()
