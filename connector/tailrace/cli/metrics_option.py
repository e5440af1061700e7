"""The option of commands that serve metrics."""

from __future__ import annotations

from typing import Annotated

import typer

MetricsPrefix = Annotated[
    str, typer.Option("--metrics-prefix", help="The first word of the names of metrics on /metrics.")
]
