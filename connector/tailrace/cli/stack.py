"""`tailrace stack`: starts and stops Postgres, Kafka and MongoDB on this machine.

The servers outlive the command, and the printed variables make the demo, the tests and your pipelines use them. Results
go to stdout and progress to stderr, so that `eval "$(tailrace stack up --export)"` works.
"""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum

import typer

from tailrace.cli.output import emit_json, say, table
from tailrace.testkit.stack import KafkaBroker, RegistryServer, stack
from tailrace.testkit.stack.paths import quiet

app = typer.Typer(
    help="Start and stop Postgres, Kafka and MongoDB on this machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)

AS_JSON = typer.Option(False, "--json", help="Print one JSON object instead of a table.")
EXIT_NOT_UP = 1


class PostgresVersion(StrEnum):
    """The Postgres versions to choose from."""

    V16 = "16"
    V18 = "18"


@app.command()
def up(
    postgres: PostgresVersion = typer.Option(PostgresVersion.V16, "--postgres", help="The version of Postgres."),
    mongo: bool = typer.Option(False, "--mongo", help="Also start MongoDB (a replica set of one)."),
    export: bool = typer.Option(False, "--export", help="Print only the export lines, for `eval`."),
    as_json: bool = AS_JSON,
) -> None:
    """Start the servers and leave them running. Does nothing if they are already up.

    The first start downloads Kafka (43 MB) into the cache.

    \b
    Examples:
      tailrace stack up
      tailrace stack up --postgres 18
      tailrace stack up --mongo
      eval "$(tailrace stack up --export)"
    """
    running, fresh = stack.up(postgres.value, quiet if as_json else _progress, with_mongo=mongo)
    if as_json:
        emit_json({"started": fresh, "servers": _rows(running)})
        return
    if not export:
        table("The stack is up" if fresh else "The stack is up already", _rows(running))
        say()
    for entry in running:
        say(f"export {entry.variable}={shlex.quote(entry.address)}")


@app.command()
def status(as_json: bool = AS_JSON) -> int:
    """Check whether the servers answer. Exit code 0 if all do, 1 otherwise.

    \b
    Examples:
      tailrace stack status
      tailrace stack status --json
    """
    known = stack.listed()
    answers = [entry.answers for entry in known]
    all_up = bool(known) and all(answers)
    rows = [{**row, "running": there} for row, there in zip(_rows(known), answers, strict=True)]
    if as_json:
        emit_json({"up": all_up, "servers": rows})
    elif known:
        table("The stack", rows)
    else:
        say("The stack is not up. Start it with `tailrace stack up`.")
    return 0 if all_up else EXIT_NOT_UP


@app.command()
def down(as_json: bool = AS_JSON) -> None:
    """Stop the servers and remove their data. Does nothing if they are already down.

    \b
    Example:
      tailrace stack down
    """
    ended = stack.down()
    if as_json:
        emit_json({"stopped": [entry.name for entry in ended]})
    elif ended:
        say(f"Stopped: {', '.join(entry.name for entry in ended)}.")
    else:
        say("The stack was not up.")


@app.command()
def fetch(
    registry: bool = typer.Option(
        False, "--registry", help="Also download a schema registry (159 MB), which the tests use."
    ),
) -> None:
    """Download what the servers need into the cache, without starting them. Later starts take seconds.

    \b
    Examples:
      tailrace stack fetch
      tailrace stack fetch --registry
    """
    KafkaBroker(progress=_progress).prepare()
    if registry:
        RegistryServer(progress=_progress).prepare()


def _rows(known: list[stack.BackgroundServer]) -> list[dict[str, object]]:
    return [{"server": e.name, "version": e.version, "address": e.address} for e in known]


def _progress(message: str) -> None:
    say(f"… {message}", sys.stderr)
