"""`tailrace outbox ddl`: prints the SQL, or the commands for mongosh, that set up an outbox."""

from __future__ import annotations

import typer

from tailrace.cli.output import say
from tailrace.cli.starter_files import MARKS_HELP, ROLE, chosen_outbox, setup_script


def ddl(
    layout: str = typer.Option("debezium", "--layout", help="debezium, document, streams or storage."),
    table: str | None = typer.Option(
        None, "--table", help="The outbox table, in Postgres. Default: public.outbox, or the layout's usual name."
    ),
    collection: str | None = typer.Option(
        None, "--collection", help="The outbox collection, in MongoDB. Default for the layout document: shop.outbox."
    ),
    role: str = typer.Option(ROLE, "--role", help="The role (in MongoDB the user) that tails the outbox."),
    by_day: bool = typer.Option(
        False, "--by-day", help="Partition the table by day, with partitions for the next days. Run it every day."
    ),
    marks: str = typer.Option("none", "--marks", help=MARKS_HELP),
    name: str = typer.Option("orders", "--name", help="The pipeline's name, for its publication: a-z, 0-9, _ and -."),
) -> None:
    """Print the set-up of an outbox: table, indexes, publication, role and grants.

    Prints SQL for psql, or commands for mongosh. Both may run again: what exists is left as it is.

    \b
    Examples:
      tailrace outbox ddl --layout streams --table public.outbox_events | psql
      tailrace outbox ddl --layout storage --role connector --name billing > outbox.sql
      tailrace outbox ddl --layout streams --marks rows | psql
      tailrace outbox ddl --by-day | psql
      tailrace outbox ddl --layout document --collection shop.outbox > outbox.js
    """
    outbox = chosen_outbox(layout, mongo=False, table=table, collection=collection)
    say(setup_script(name, outbox, role, by_day=by_day, marks=marks).rstrip("\n"))
