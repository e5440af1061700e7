"""The commands that a worker runs for its HTTP API and for `--worker`, taken from the commands themselves.

A parameter of a command is either offered, or named in `WITHHELD` with the reason. So a new option of a command is part
of the API as soon as it exists.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Union, get_args, get_origin

import typer

from tailrace.api.v1.operation import PIPELINE, Kind, Operation, Parameter
from tailrace.cli.commands import app, run_command
from tailrace.cli.output import report_progress_as_json, run_on_worker
from tailrace.cli.remote import VARIABLE

WITHHELD = {
    "as_json": "the API always answers with JSON",
    "yes": "a request is the confirmation",
    "watch": "it has no end; the event stream shows changes",
    "edit": "it opens an editor; `payload` takes the edited payload",
    "bootstrap": "the worker connects only to the servers of its pipelines",
    "kafka_setting": "the worker connects only to the servers of its pipelines",
    "folder": "a path on the worker; the pipeline's settings name the folder",
    "output": "a path on the worker; the plan is the result",
    "settings": "the worker knows the settings of its pipelines",
    "consumers": "it imports a module of the worker",
    "projection": "it names a database or imports a module; the worker's environment sets it",
}
"""Parameters that the API does not offer, and why."""


class Command(NamedTuple):
    """A command that a worker runs.

    `is_plan`: its first argument is a plan, not the pipeline's settings. `shows_events`: it prints payloads, keys or
    parts of them, so callers need the role admin.
    """

    name: str
    changes: bool = False
    long: bool = False
    lines: bool = False
    is_plan: bool = False
    shows_events: bool = False


COMMANDS = (
    Command("status"),
    Command("check"),
    Command("doctor", long=True),
    Command("position show"),
    Command("position history", lines=True),
    Command("position reset", changes=True),
    Command("dlq list", shows_events=True),
    Command("dlq show", shows_events=True),
    Command("dlq parked", shows_events=True),
    Command("dlq redrive", changes=True, long=True, lines=True),
    Command("dlq discard", changes=True, long=True, lines=True),
    Command("replay plan", changes=True, long=True),
    Command("replay apply", changes=True, long=True, is_plan=True),
    Command("replay diff", long=True, is_plan=True),
    Command("recover plan", long=True),
    Command("recover apply", changes=True, long=True),
    Command("verify", long=True),
    Command("topics plan"),
    Command("topics apply", changes=True),
    Command("route explain"),
    Command("schemas list"),
    Command("schemas check"),
    Command("schemas diff"),
    Command("schemas register", changes=True),
    Command("archive list"),
    Command("archive check", long=True),
    Command("retention plan", long=True),
    Command("retention apply", changes=True, long=True),
    Command("trace", shows_events=True),
)


@cache
def operations() -> tuple[Operation, ...]:
    """Returns the operations in the order of `COMMANDS`. Imports the module of each command."""
    return tuple(_operation(command) for command in COMMANDS)


def operation(name: str) -> Operation:
    """Returns one operation. Imports only the module of its command."""
    return _operation(next(each for each in COMMANDS if each.name == name))


def find_command(name: str) -> Any:  # noqa: ANN401 - typer's own type of a command is private
    """Returns Typer's command of this name, such as `position reset`."""
    found: Any = typer.main.get_command(app)
    for word in name.split():
        found = found.get_command(None, word)
    return found


def _operation(command: Command) -> Operation:
    found = find_command(command.name)
    given = [each for each in found.params if each.name not in WITHHELD and not _is_pipeline(each, command)]
    names = {each.name for each in found.params}
    summary, _, more = str(found.help).partition("\n")
    return Operation(
        name=command.name,
        # A job is created, also by those that change nothing.
        method="POST" if command.changes or command.long else "GET",
        summary=summary.strip(),
        description=_description(more),
        parameters=tuple(_parameter(each, command) for each in given),
        arguments=tuple(_arguments(found.params, command)),
        settings_option="--settings" if command.is_plan else "",
        long=command.long,
        lines=command.lines,
        confirms="yes" in names,
        writes="--output" if "output" in names else "",
        shows_events=command.shows_events,
    )


def _parameter(found: Any, command: Command) -> Parameter:  # noqa: ANN401
    is_option = found.opts[0].startswith("-")
    annotation = found.type_descriptor.annotation
    repeatable = bool(found.multiple) or found.nargs == -1
    kind: Kind = "content" if _is_path(annotation) else _KINDS.get(annotation, "string")
    name = found.opts[0].lstrip("-").replace("-", "_") if is_option else found.name
    is_plan = command.is_plan and not is_option
    return Parameter(
        name="plan" if is_plan else name,
        kind=kind,
        help="The plan that `replay plan` returned, or its id while the worker keeps it." if is_plan else found.help,
        option=found.opts[0] if is_option else "",
        default=None if callable(found.default) else found.default,
        required=bool(found.required),
        repeatable=repeatable,
        minimum=found.min,
        maximum=found.max,
    )


_KINDS: dict[object, Kind] = {int: "integer", float: "number", bool: "boolean"}


def _arguments(parameters: list[Any], command: Command) -> Iterator[str]:
    for each in parameters:
        if each.opts[0].startswith("-"):
            continue
        if _is_pipeline(each, command):
            yield PIPELINE
        else:
            yield "plan" if command.is_plan else each.name


def _is_pipeline(found: Any, command: Command) -> bool:  # noqa: ANN401
    return found.name in ("file", "files") and not command.is_plan


def _is_path(annotation: object) -> bool:
    if get_origin(annotation) in (Union, types.UnionType):
        return Path in get_args(annotation)
    return annotation is Path


def _description(text: str) -> str:
    """Returns the help text without the examples, which are command lines."""
    return text.replace("\b", "").partition("Examples:")[0].strip()


def run_for_worker(words: list[str]) -> int:
    """Runs a command in a process of a worker; returns its exit code."""
    if "--json" in words:
        report_progress_as_json()
    run_on_worker()
    os.environ.pop(VARIABLE, None)  # this is the worker: its commands are not sent to another one, or to itself
    return run_command(words)
