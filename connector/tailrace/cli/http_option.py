"""The option `--http-settings` of commands that open an HTTP port."""

from pathlib import Path
from typing import Annotated

import typer

HttpSettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--http-settings",
        envvar="TAILRACE_HTTP_SETTINGS",
        metavar="FILE",
        help="A YAML file with the protection of the HTTP port: TLS, tokens, client certificates, limits. Needed as "
        "soon as other machines can reach the port.",
    ),
]
