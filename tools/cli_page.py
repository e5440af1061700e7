"""Writes docs/cli.md from the commands themselves, independent of the width of a terminal."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import typer

from tailrace.cli.commands import COMMANDS, EPILOG, app

WIDTH = 120
HEAD = """\
# Commands

<!-- Written by `make docs` from the commands' own help. Do not edit. -->

`tailrace COMMAND --help` shows the same. Every command that reads a pipeline takes its settings file
([configuration.md](configuration.md)) and the `TAILRACE_…` variables. Errors go to standard error as code, cause and
remedy ([errors.md](errors.md)); with `--json`, as one JSON object.
"""


def context_of(command: Any, name: str, parent: Any) -> Any:
    return command.context_class(command, info_name=name, parent=parent, terminal_width=10_000)


def paragraphs(text: str) -> Iterator[str]:
    """A docstring as Markdown: indented lines become code blocks, other lines wrapped paragraphs."""
    plain = re.sub(r"(?m)^\x08\n(.*:)\n((?:.+\n?)+)", _indented, inspect.cleandoc(text))
    for block in re.split(r"\n\s*\n", re.sub(r"(?m)^(    .*)\n\s*\n(?=    )", r"\1\n", plain)):
        lines = block.strip("\n").splitlines()
        code = [line.strip() for line in lines if line.startswith("    ")]
        words = " ".join(line.strip() for line in lines if not line.startswith("    "))
        if words:
            yield from (*textwrap.wrap(words, WIDTH, break_long_words=False, break_on_hyphens=False), "")
        if code:
            yield from ("```", *code, "```", "")


def _indented(block: re.Match[str]) -> str:
    """A block that Click keeps as it is, examples below a title, in the form of the others."""
    return f"{block[1]}\n{textwrap.indent(block[2], ' ' * 4)}"


def parameters(command: Any, context: Any) -> Iterator[str]:
    records = [record for each in command.params if (record := each.get_help_record(context))]
    rows = [[" ".join(cell.split()).replace("|", "\\|") for cell in record] for record in records]
    rows = [row for row in rows if "--help" not in row[0]]
    if not rows:
        return
    yield "| argument or option | meaning |"
    yield "|---|---|"
    for name, text in rows:
        yield f"| `{name}` | {text} |"
    yield ""


def described(command: Any, path: str, parent: Any, depth: int) -> Iterator[str]:
    """A command with its usage, help and options, then the commands below it."""
    context = context_of(command, path.rpartition(" ")[2], parent)
    yield f"{'#' * depth} {path}"
    yield ""
    yield "```"
    yield " ".join([path, *command.collect_usage_pieces(context)])
    yield "```"
    yield ""
    yield from paragraphs(command.help or "")
    yield from parameters(command, context)
    for name in getattr(command, "commands", {}):
        inner = command.commands[name]
        if not inner.hidden:
            yield from described(inner, f"{path} {name}", context, depth + 1)


def page() -> str:
    main: Any = typer.main.get_command(app)
    root = context_of(main, "tailrace", None)
    lines = [HEAD, "| command | meaning |", "|---|---|"]
    lines += [f"| [`{name}`](#tailrace-{name}) | {text} |" for name, (_, text) in COMMANDS.items()]
    lines += ["", *textwrap.wrap(" ".join(EPILOG.split()), WIDTH), ""]
    for name in COMMANDS:
        lines += described(main.get_command(root, name), f"tailrace {name}", root, 2)
    return "\n".join(lines).rstrip() + "\n"
