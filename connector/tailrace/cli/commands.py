"""The commands of `tailrace`, and how each of their outcomes becomes text and an exit code.

A command's module is imported only when the command is called. It holds either a function with the command's name or,
for a group of commands, a Typer named `app`. `--help` reads the table `COMMANDS` and imports none of them. A command
returns None (exit code 0) or an exit code, or raises an error; `run_command` prints errors, masked by `mask`.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, cast

import typer
from typer.core import TyperCommand, TyperGroup

from tailrace import __version__
from tailrace.cli import EXIT_INTERRUPTED
from tailrace.cli.output import print_error, say
from tailrace.config.secrets import mask
from tailrace.errors import ConfigError, TailraceError

COMMANDS = {
    "run": ("tailrace.cli.run", "Run a pipeline: tail the outbox and publish to Kafka."),
    "worker": ("tailrace.cli.worker", "Run all pipelines of a folder, each in its own process, with an HTTP port."),
    "check": ("tailrace.cli.check", "Check settings, database and Kafka, and show how to fix problems."),
    "doctor": ("tailrace.cli.doctor", "Check pipelines, servers and topics thoroughly, also while they run."),
    "status": ("tailrace.cli.status", "Show the state of a pipeline, its position and its lag."),
    "verify": ("tailrace.cli.verify", "Compare an outbox with its topics: missing, duplicated, changed, out of order."),
    "recover": ("tailrace.cli.recover.command", "Plan and run the recovery of a pipeline whose log was lost."),
    "position": ("tailrace.cli.position", "Show the position of a pipeline and its history, and reset it."),
    "replay": (
        "tailrace.cli.replay.command",
        "Plan and run a replay, or diff a shadow replay with the live topics.",
    ),
    "archive": ("tailrace.cli.archive", "Move old outbox rows to files; list, verify and expire them."),
    "retention": ("tailrace.cli.retention", "Delete outbox rows that nobody needs any more."),
    "project": (
        "tailrace.cli.project.command",
        "Run a worker of a projection app, which applies each event once.",
    ),
    "schemas": ("tailrace.cli.schemas.command", "List, check and register schemas."),
    "tail": ("tailrace.cli.tail", "Show published events as consumers read them."),
    "trace": ("tailrace.cli.trace", "Show everything that is known of one event."),
    "dlq": (
        "tailrace.cli.dlq.command",
        "List, show, redrive and discard dead letters.",
    ),
    "route": ("tailrace.cli.route", "Explain the route of an event: rule, topic, key and partition."),
    "outbox": ("tailrace.cli.outbox.command", "Set up the outbox of a service."),
    "topics": ("tailrace.cli.topics", "Compare declared topics with the cluster, and apply the differences."),
    "init": (
        "tailrace.cli.init",
        "Create the files of a first pipeline: settings, schema, routing rule, SQL.",
    ),
    "import": ("tailrace.cli.import_", "Take over from Debezium: settings, offset, and a comparison before it."),
    "drill": (
        "tailrace.cli.drill",
        "Break a staging pipeline's connections on purpose, with events of its own, and check the result.",
    ),
    "demo": ("tailrace.cli.demo", "Run a demonstration with local servers."),
    "stack": ("tailrace.cli.stack", "Start and stop local Postgres, MongoDB and Kafka servers."),
}

EPILOG = """Exit codes: 0 done; 1 a check or verdict failed; 2 wrong usage or configuration; 3 the pipeline
FAILED and needs a person; 4 fenced: another instance took over; 70 a bug; 130 interrupted."""

EXIT_BUG = 70


class _Formatter(Protocol):
    def section(self, name: str) -> AbstractContextManager[None]: ...

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None: ...


class LazyGroup(TyperGroup):
    """Lists commands from a table, and imports one only when it is called."""

    def list_commands(self, ctx: object) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand | None:
        if cmd_name not in COMMANDS:
            near = difflib.get_close_matches(cmd_name, COMMANDS, 1)
            hint = f"Did you mean `tailrace {near[0]}`?" if near else f"There are: {', '.join(COMMANDS)}."
            raise ConfigError(f"there is no command {cmd_name!r}", remedy=hint)
        name, short_help = COMMANDS[cmd_name]
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            return None
        found = getattr(module, "app", None)
        if not isinstance(found, typer.Typer):
            found = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
            found.command(name=cmd_name, short_help=short_help)(getattr(module, cmd_name))
        command = cast(TyperCommand, typer.main.get_command(found))
        command.name = cmd_name
        return command

    def format_commands(self, ctx: object, formatter: _Formatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, short_help) for name, (_, short_help) in COMMANDS.items()])


app = typer.Typer(
    cls=LazyGroup,
    # Plain help texts: rich ones would import rich and every command's module.
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"tailrace {__version__}")
        raise typer.Exit


@app.callback()
def _tailrace(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
    worker: str = typer.Option(
        "",
        "--worker",
        metavar="URL",
        help="Run the command on a worker, with the name of a pipeline instead of its file: "
        "`tailrace status orders --worker http://127.0.0.1:8083`. Or set TAILRACE_WORKER.",
    ),
) -> None:
    """Publishes outbox tables to Kafka, exactly once and in order."""


def run_command(arguments: list[str]) -> int:
    """Runs a command and returns its exit code."""
    as_json = "--json" in arguments
    try:
        if "TAILRACE_WORKER" in os.environ or any(word.startswith("--worker") for word in arguments):
            from tailrace.cli.remote import find_target, run_remote

            url, arguments = find_target(arguments)
            if url is not None:
                return run_remote(url, arguments)
        result = typer.main.get_command(app)(arguments, prog_name="tailrace", standalone_mode=False)
    except TailraceError as error:
        print_error(error, as_json=as_json)
        return error.exit_code
    except typer.TyperException as error:
        return _usage_error(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except Exception:  # noqa: BLE001  a bug must end with a readable message
        print(mask(traceback.format_exc()), file=sys.stderr, end="")
        say(
            "This is a bug in Tailrace, not in your settings. Please report it with the lines above.",
            sys.stderr,
        )
        return EXIT_BUG
    code = result if isinstance(result, int) else 0
    return _interrupted() if code == EXIT_INTERRUPTED else code


def _interrupted() -> int:
    say("interrupted", sys.stderr)
    return EXIT_INTERRUPTED


def _usage_error(error: typer.TyperException, *, as_json: bool) -> int:
    """Prints a usage error like every other error. A call without arguments prints the help and is no error."""
    text = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        say(text)
        return 0
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "tailrace"
    print_error(ConfigError(text, remedy=f"See `{command} --help`."), as_json=as_json)
    return ConfigError.exit_code
