"""Writes docs/errors.md from the error classes and from every place that raises one of them."""

from __future__ import annotations

import ast
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import tailrace
from tailrace import errors
from tailrace.cli.commands import EPILOG
from tailrace.errors import Action, TailraceError

HEAD = """\
# Errors

<!-- Written by `make docs` from connector/tailrace/errors.py and all places that raise these errors. Do not edit. -->

Every error has a code (the name of its class), says what happened and why, and names a remedy. With `--json` a command
prints one object: `{"error": CODE, "what": …, "why": …, "remedy": …, "exit_code": …}`. No error contains a payload or
a secret.

An error *stops* a pipeline (state FAILED), is *retried* with a growing delay, or *dead-letters* one event:

| action | meaning |
|---|---|
| stop | Tailrace ends with the exit code below. Nothing is skipped: after the remedy, start it again. |
| retry | Tailrace waits and tries again by itself. A command that does not wait ends with the exit code below. |
| dead-letter | Only this event is affected: see [dead_letters.md](dead_letters.md). |

In the texts below, … stands for a value.
"""
WIDTH = 120
ACTIONS = {Action.HALT: "stop", Action.RETRY: "retry", Action.DEAD_LETTER: "dead-letter"}
WITHOUT_MESSAGES = ("ConfigError", "ProtocolError", "SchemaError")
"""Errors with too many messages to list: each of these names the setting, byte or schema that is wrong."""


def classes(base: type[TailraceError] = TailraceError, depth: int = 0) -> Iterator[tuple[int, type[TailraceError]]]:
    """The error classes of the tree below `base`, each with its depth, in the order of declaration."""
    for found in base.__subclasses__():
        if found.__module__ == errors.__name__:
            yield depth, found
            yield from classes(found, depth + 1)


def meanings() -> dict[str, str]:
    """What each class means, from the tree in the module's docstring."""
    found = {}
    for line in (errors.__doc__ or "").splitlines():
        if entry := re.match(r"[\s│├└─]*([A-Z]\w+)\s{2,}(\S.*?)(?:\s{2,}.*)?$", line):
            found[entry[1]] = re.sub(r"\s+(user|peer|ours)$", "", entry[2])
    return found


def text_of(node: ast.expr | None) -> str:
    """The text that an expression makes, with … for what is known only when it runs."""
    match node:
        case None:
            return ""
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text_of(left) + text_of(right)
        case ast.IfExp(body=body, orelse=other):
            return text_of(body) or text_of(other)
    return "…"


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Every call of a module by the name that is called; a class that calls its base's `__init__`, by its own name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            inside = (call for call in ast.walk(node) if isinstance(call, ast.Call))
            yield from ((node.name, call) for call in inside if getattr(call.func, "attr", "") == "__init__")
        elif isinstance(node, ast.Call):
            yield getattr(node.func, "id", "") or getattr(node.func, "attr", ""), node


def raised() -> dict[str, list[tuple[str, str, str]]]:
    """What, why and remedy of every error that the package makes, by class."""
    names = {found.__name__ for _, found in classes()}
    messages: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
    for file in sorted(Path(tailrace.__file__).parent.rglob("*.py")):
        for name, call in calls(ast.parse(file.read_text(encoding="utf-8"))):
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            position = 1 if name == "Rejected" else 0
            what = call.args[position] if len(call.args) > position else given.get("what")
            message = (text_of(what), text_of(given.get("why")), text_of(given.get("remedy")))
            if name in names and re.search(r"\w", message[0]):
                messages[name].add(message)
    return {name: sorted(found) for name, found in messages.items()}


def entry(depth: int, found: type[TailraceError], meaning: str, messages: list[tuple[str, str, str]]) -> Iterator[str]:
    yield f"{'##' if depth == 0 else '###'} {found.__name__}"
    yield ""
    yield f"{meaning[:1].upper()}{meaning[1:]}. {ACTIONS[found.action].capitalize()}, exit code {found.exit_code}."
    yield ""
    if found.__name__ in WITHOUT_MESSAGES:
        return
    for what, why, remedy in messages:
        yield from wrapped("- ", f"**{escaped(what)}**")
        if why:
            yield from wrapped("  - why: ", escaped(why))
        if remedy:
            yield from wrapped("  - remedy: ", escaped(remedy))
    if messages:
        yield ""


def wrapped(bullet: str, text: str) -> list[str]:
    indent = " " * (bullet.index("-") + 2)
    return textwrap.wrap(
        text, WIDTH, initial_indent=bullet, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def escaped(text: str) -> str:
    """The text as Markdown shows it unchanged: only `code` in backticks keeps its meaning."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([*_<>\[\]|])", r"\\\1", part) for part in parts)


def page() -> str:
    texts, messages = meanings(), raised()
    lines = [HEAD, "## Exit codes", "", "| code | meaning |", "|---|---|"]
    codes = re.sub(r"\s+", " ", EPILOG).partition(":")[2].strip(" .").split(";")
    lines += [f"| {code} | {text} |" for code, _, text in (each.strip().partition(" ") for each in codes)]
    lines += ["", "## All codes", "", "| code | meaning | action | exit code |", "|---|---|---|---|"]
    for depth, found in classes():
        name = found.__name__
        indent = "&nbsp;&nbsp;" * depth
        link = f"{indent}[`{name}`](#{name.lower()})"
        lines.append(f"| {link} | {texts[name]} | {ACTIONS[found.action]} | {found.exit_code} |")
    lines.append("")
    for depth, found in classes():
        lines += entry(depth, found, texts[found.__name__], messages.get(found.__name__, []))
    return "\n".join(lines).rstrip() + "\n"
