"""The option of all commands that run until they are stopped: how their log lines look."""

from __future__ import annotations

from typing import Annotated

import typer

LogJson = Annotated[
    bool | None,
    typer.Option(
        "--log-json/--log-text",
        help="Log one JSON object per line, or lines for people. Default: lines for people on a terminal, else JSON.",
        show_default=False,
    ),
]
