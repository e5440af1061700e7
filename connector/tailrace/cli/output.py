"""Output of commands: tables, JSON and errors.

Results go to stdout, errors to stderr. On a terminal the output has colour, unless NO_COLOR is set; elsewhere it is
plain, aligned text. Everything is masked. rich is imported only to draw a table on a terminal.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from tailrace.config.secrets import mask
from tailrace.errors import TailraceError

_RED, _DIM, _GREEN, _RESET = "\x1b[1;31m", "\x1b[2m", "\x1b[32m", "\x1b[0m"
PROGRESS_SECONDS = 0.25


class _ProgressReport:
    on = False
    on_worker = False
    next = 0.0


_progress = _ProgressReport()


def has_colour(stream: TextIO) -> bool:
    """Whether the stream is a terminal with colour (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(title: str, rows: Sequence[Mapping[str, object]], stream: TextIO | None = None) -> None:
    """Prints rows, with the keys of the first one as header."""
    out = stream or sys.stdout
    if not rows:
        print(mask(f"{title}: none"), file=out)
        return
    names = list(rows[0])
    cells = [[mask(_cell(row.get(name))) for name in names] for row in rows]
    if out.isatty():
        _rich_table(title, names, cells, out)
        return
    widths = [max(len(line[i]) for line in [names, *cells]) for i in range(len(names))]
    print(mask(title), file=out)
    for line in [names, *cells]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip(), file=out)


def emit_json(obj: object, stream: TextIO | None = None) -> None:
    """Prints one JSON value on one line."""
    print(json.dumps(_masked(obj), ensure_ascii=False), file=stream or sys.stdout, flush=True)


def report_progress_as_json() -> None:
    """Makes commands print their progress to stderr as JSON: the worker that runs them shows it."""
    _progress.on = True


def reports_progress() -> bool:
    return _progress.on


def run_on_worker() -> None:
    """Notes that a worker runs this command: its pipelines run already."""
    _progress.on_worker = True


def is_on_worker() -> bool:
    return _progress.on_worker


def report_progress(share: float, text: str) -> None:
    """Prints the completed share and a short text, at most a few times a second."""
    now = time.monotonic()
    if now >= _progress.next or share >= 1:
        _progress.next = now + PROGRESS_SECONDS
        emit_json({"progress": round(share, 4), "text": text}, sys.stderr)


def say(text: str = "", stream: TextIO | None = None) -> None:
    """Prints a line of text with a single write, so that lines of several threads do not mix."""
    (stream or sys.stdout).write(f"{mask(text)}\n")


def print_error(error: TailraceError, *, as_json: bool, stream: TextIO | None = None) -> None:
    """Prints an error: what, why and remedy, or one JSON object."""
    out = stream or sys.stderr
    if as_json:
        fields = {"error": error.code, "what": error.what, "why": error.why, "remedy": error.remedy}
        emit_json({**fields, "exit_code": error.exit_code}, out)
        return
    red, dim, green, reset = (_RED, _DIM, _GREEN, _RESET) if has_colour(out) else ("", "", "", "")
    print(mask(f"{red}{error.code}:{reset} {error.what}"), file=out)
    if error.why:
        print(mask(f"  {dim}why:{reset}    {error.why}"), file=out)
    if error.remedy:
        print(mask(f"  {green}remedy:{reset} {error.remedy}"), file=out)


def _rich_table(title: str, names: list[str], cells: list[list[str]], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=Text(mask(title)), title_justify="left")
    for name in names:
        drawn.add_column(Text(name))
    for line in cells:
        # As Text, because a value such as [red] is not markup.
        drawn.add_row(*map(Text, line))
    Console(file=out, no_color=not has_colour(out)).print(drawn)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _masked(value: Any) -> object:  # noqa: ANN401  any JSON value
    """Masks texts before encoding, because escaping could hide a secret."""
    if isinstance(value, Mapping):
        return {str(key): _masked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float) else mask(str(value))
