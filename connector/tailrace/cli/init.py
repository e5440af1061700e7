"""`tailrace init`: writes the files of a first pipeline, which needs only addresses and a password.

Four files: settings, a schema, a routing rule, and the SQL for the outbox table and a role with few rights; for MongoDB
the commands for the outbox collection and its user. Existing files are overwritten only with `--force`. The example
schema is shared by the pipelines of a folder, so an existing one is kept; any other existing file is an error.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from tailrace.cli.output import say
from tailrace.cli.starter_files import (
    MARKS_HELP,
    ROLE,
    ChosenOutbox,
    chosen_outbox,
    require_name,
    starter_files,
    variable,
)
from tailrace.errors import ConfigError


def init(
    folder: Path = typer.Argument(Path(), metavar="DIR", help="The folder to write to; created if missing."),
    name: str = typer.Option("orders", "--name", help="The pipeline's name: a-z, 0-9, _ and -."),
    layout: str | None = typer.Option(
        None,
        "--layout",
        help="debezium, document, streams or storage. Default: debezium; in MongoDB document.",
    ),
    table: str | None = typer.Option(
        None, "--table", help="The outbox table, in Postgres. Default: public.outbox, or the layout's usual name."
    ),
    mongo: bool = typer.Option(False, "--mongo", help="Create a pipeline for MongoDB instead of Postgres."),
    collection: str | None = typer.Option(
        None, "--collection", help="The outbox collection, in MongoDB. Default: shop.outbox."
    ),
    marks: str = typer.Option("none", "--marks", help=MARKS_HELP),
    force: bool = typer.Option(False, "--force", help="Overwrite existing files."),
) -> None:
    """Create the files of a first pipeline: settings, schema, routing rule, SQL.

    With --mongo, the commands for mongosh that create the collection and its user replace the SQL.

    Examples:

        tailrace init --name orders --table public.outbox

        tailrace init --name payouts --layout streams --table public.outbox_events

        tailrace init --name orders --mongo --collection shop.outbox
    """
    require_name(name)
    outbox = chosen_outbox(layout, mongo=mongo, table=table, collection=collection)
    files = starter_files(name, outbox, marks=marks)
    present = [file for file in files if (folder / file).exists() and file != outbox.schema_file]
    if present and not force:
        raise ConfigError(
            f"these files exist: {', '.join(str(folder / file) for file in present)}",
            why="Nothing was written.",
            remedy="Choose another --name or folder, or overwrite with --force.",
        )
    try:
        for file, text in files.items():
            if file == outbox.schema_file and (folder / file).exists() and not force:
                say(f"kept  {folder / file}")
                continue
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")
            say(f"wrote {folder / file}")
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder} cannot be written ({error.strerror})",
            remedy="Choose a folder that you may write to.",
        ) from None
    say()
    for line in _next_steps(folder, name, outbox):
        say(line)


def _next_steps(folder: Path, name: str, outbox: ChosenOutbox) -> list[str]:
    file = shlex.quote(str(folder / f"{name}.yaml"))
    if outbox.is_mongo:
        commands = shlex.quote(str(folder / f"{name}.js"))
        first = [f"  1. Create the collection, the role and the user (asks for a password):  mongosh -f {commands}"]
    else:
        sql = shlex.quote(str(folder / f"{name}.sql"))
        first = [
            f"  1. Create the table, the role and the publication:  psql -f {sql}",
            f"     and give the role a password:                    psql -c '\\password {ROLE}'",
            "     The same file has lines for pg_hba.conf, which keep the role from copying the whole cluster.",
        ]
    return [
        "Next:",
        *first,
        f"  2. Write your addresses into {file}, then:  export {variable(name)}=…",
        f"  3. tailrace check {file}  and, without failures,  tailrace run {file}",
    ]
