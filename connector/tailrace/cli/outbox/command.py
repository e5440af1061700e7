"""`tailrace outbox`: sets up the outbox of a service."""

from __future__ import annotations

import typer

from tailrace.cli.outbox.ddl import ddl
from tailrace.cli.outbox.guard import guard

app = typer.Typer(
    help="Set up the outbox of a service.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _outbox() -> None:
    """Keeps the names of subcommands: a Typer with one command would drop its name."""


app.command("ddl")(ddl)
app.command("guard")(guard)
