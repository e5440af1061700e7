"""`tailrace stack`: Postgres, Kafka and MongoDB on this machine, up until they are told to go down.

For trying things out by hand: servers that outlive the command, and the variables that point everything
else (the demo, the tests, a pipeline of one's own) at them. Results go to stdout, progress to stderr, so that
`eval "$(tailrace stack up --export)"` works.
"""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum

import typer

from tailrace.cli.output import emit_json, say, table
from tailrace.testkit.stack import KafkaBroker, RegistryServer, background
from tailrace.testkit.stack.cache import quiet

app = typer.Typer(
    help="Start and stop Postgres, Kafka and MongoDB on this machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)

AS_JSON = typer.Option(False, "--json", help="Print one JSON object instead of a table.")
EXIT_NOT_UP = 1


class Version(StrEnum):
    """The Postgres versions there are."""

    V16 = "16"
    V18 = "18"


@app.command()
def up(
    postgres: Version = typer.Option(Version.V16, "--postgres", help="The version of Postgres."),
    mongo: bool = typer.Option(False, "--mongo", help="Also a MongoDB (a replica set of one)."),
    export: bool = typer.Option(False, "--export", help="Print only the export lines, for `eval`."),
    as_json: bool = AS_JSON,
) -> None:
    """Start the servers and leave them running; does nothing when they are up already.

    The first time fetches Kafka (43 MB) into the cache.

    \b
    Examples:
      tailrace stack up
      tailrace stack up --postgres 18
      tailrace stack up --mongo
      eval "$(tailrace stack up --export)"
    """
    running, fresh = background.up(postgres.value, quiet if as_json else _progress, with_mongo=mongo)
    if as_json:
        emit_json({"started": fresh, "servers": _told(running)})
        return
    if not export:
        table("The stack is up" if fresh else "The stack is up already", _told(running))
        say()
    for entry in running:
        say(f"export {entry.variable}={shlex.quote(entry.address)}")


@app.command()
def status(as_json: bool = AS_JSON) -> int:
    """Ask the servers whether they answer; exit code 0 when they do, 1 when not.

    \b
    Examples:
      tailrace stack status
      tailrace stack status --json
    """
    known = background.entries()
    answers = [entry.answers for entry in known]
    all_up = bool(known) and all(answers)
    rows = [{**told, "running": there} for told, there in zip(_told(known), answers, strict=True)]
    if as_json:
        emit_json({"up": all_up, "servers": rows})
    elif known:
        table("The stack", rows)
    else:
        say("The stack is not up. Start it with `tailrace stack up`.")
    return 0 if all_up else EXIT_NOT_UP


@app.command()
def down(as_json: bool = AS_JSON) -> None:
    """Stop the servers and remove their data; does nothing when they are down already.

    \b
    Example:
      tailrace stack down
    """
    ended = background.down()
    if as_json:
        emit_json({"stopped": [entry.name for entry in ended]})
    elif ended:
        say(f"Stopped: {', '.join(entry.name for entry in ended)}.")
    else:
        say("The stack was not up.")


@app.command()
def fetch(
    registry: bool = typer.Option(False, "--registry", help="Also a schema registry (159 MB), which tests need."),
) -> None:
    """Fetch what the servers need into the cache, without starting them; done once, later starts take seconds.

    \b
    Examples:
      tailrace stack fetch
      tailrace stack fetch --registry
    """
    KafkaBroker(progress=_progress).prepare()
    if registry:
        RegistryServer(progress=_progress).prepare()


def _told(known: list[background.BackgroundServer]) -> list[dict[str, object]]:
    return [{"server": e.name, "version": e.version, "address": e.address} for e in known]


def _progress(message: str) -> None:
    say(f"… {message}", sys.stderr)
