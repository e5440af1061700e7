"""`tailrace project`: runs a worker of a projection app in the foreground until SIGTERM or an error."""

from __future__ import annotations

import importlib
import sys
import traceback
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tailrace.cli import restore_default_handlers
from tailrace.cli.http_option import HttpSettingsFile
from tailrace.cli.log_option import LogJson
from tailrace.cli.project.telemetry import exporting
from tailrace.errors import ConfigError, TailraceError, install_remedy
from tailrace.worker import logs
from tailrace.worker.memory import reduce_garbage_collection, use_one_heap

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp

DEFAULT_ATTRIBUTE = "app"


def project(
    app: str = typer.Argument(..., help="The app, as module:attribute, such as shop.projections:app."),
    log_json: LogJson = None,
    reset: str | None = typer.Option(
        None,
        "--reset",
        metavar="POINT",
        help="Reset the offsets to earliest, latest or a time, then exit. Without --yes it only shows them.",
    ),
    prune: bool = typer.Option(False, "--prune", help="Delete markers older than keep_markers, then exit."),
    rebuild: bool = typer.Option(
        False, "--rebuild", help="Rebuild into a shadow copy, swap it in when caught up, then exit."
    ),
    projection: str | None = typer.Option(None, "--projection", help="The projection's name, if the app has several."),
    yes: bool = typer.Option(False, "--yes", help="Carry out the reset that --reset shows."),
    http: str | None = typer.Option(
        None,
        "--http",
        metavar="[HOST:]PORT",
        help="Serve /metrics, /livez and /readyz on this address. Without a host, only this machine can connect.",
    ),
    http_settings: HttpSettingsFile = None,
    metrics_prefix: str = typer.Option("tailrace", "--metrics-prefix", help="How the names of all metrics begin."),
) -> None:
    """Run a worker of a projection app, until SIGTERM.

    SIGTERM and SIGINT finish the current batches and exit within 10 s. The worker waits for a server that is
    unavailable. Any other error ends it with its cause and its remedy, and no events are lost: the next start
    continues at the offsets in the projection's database. Several workers share the partitions.

    Examples:

        tailrace project shop.projections:app

        tailrace project shop.projections --log-text --http 8084

        tailrace project shop.projections:app --reset 2026-11-01T14:05Z --yes

        tailrace project shop.projections:app --rebuild
    """
    logs.configure(as_json=log_json)
    found = load_app(app)
    if reset is not None or prune:
        restore_default_handlers()  # a stop signal must not look like success
        from tailrace.cli.project import actions

        if reset is not None:
            actions.reset(found, reset, name=projection, yes=yes)
        if prune:
            actions.prune_markers(found)
        return
    if rebuild:
        from tailrace.cli.project.actions import chosen
        from tailrace.projections.rebuild.rebuild import Rebuild

        Rebuild(found, chosen(found, projection))
    log = logs.StructuredLogger(app=found.conf.id)
    from tailrace.projections.faust.worker import ProjectionWorker, filter_repeated_errors

    filter_repeated_errors()
    worker = ProjectionWorker(found, override_logging=False, quiet=True, redirect_stdouts=False)
    worker.spinner = None
    edge = _serve(found, http, http_settings, metrics_prefix, log) if http is not None else nullcontext()
    log.info("starting", broker=";".join(f"{url.host}:{url.port}" for url in found.conf.broker_consumer))
    use_one_heap()
    reduce_garbage_collection()
    try:
        with edge, exporting(found, log):
            worker.run()
    except TailraceError as error:
        log.error(  # noqa: TRY400 - this log has no tracebacks
            "failed",
            error=error.code,
            what=error.what,
            why=error.why,
            remedy=error.remedy,
        )
        raise
    log.info("stopped", records=found.reader.records if found.reader is not None else 0)


def _serve(
    app: ProjectionApp, address: str, settings: Path | None, prefix: str, log: logs.StructuredLogger
) -> AbstractContextManager[object]:
    """Opens the HTTP edge; it ends with the context."""
    try:
        from tailrace.api import port as ports
        from tailrace.api import projections, server
    except ModuleNotFoundError as error:
        raise ConfigError(f"--http needs {error.name}, which is not installed", remedy=install_remedy("http")) from None
    host, port = server.parse_address(address)
    protection = ports.PortProtection(settings)
    if settings is not None:
        protection.require_protected(host, port)
    edge = projections.ProjectionEdge(app, host, port, prefix, protection)
    log.info("http", host=host, port=edge.port)
    if not server.is_loopback(host) and not protection.settings.authenticates:
        log.warning("notice", what=f"everyone who can reach {host}:{edge.port} can read the metrics of this worker")
    return closing(edge)


def load_app(name: str) -> ProjectionApp:
    """Imports the app that `module:attribute` names, from the current folder or an installed package."""
    module_name, _, attribute = name.partition(":")
    attribute = attribute or DEFAULT_ATTRIBUTE
    if "/" in module_name or module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(f"{module_name!r} is a file, not a module", remedy=f"Give `{dotted}:{attribute}`.")
    if not all(part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")]):
        raise ConfigError(
            f"{name!r} is not the name of an app", remedy="Give it as module:attribute, such as shop.projections:app."
        )
    try:
        from tailrace.projections.faust.app import ProjectionApp
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"projections need {error.name}, which is not installed", remedy=install_remedy("faust")
        ) from None
    found: object = _import(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{module_name} has no {attribute!r}", remedy="Name the attribute that holds the app.")
        found = getattr(found, part)
    if not isinstance(found, ProjectionApp):
        raise ConfigError(
            f"{name} is {type(found).__name__}, not an app for projections",
            why="Only an app made by projection_app() skips aborted events and reads from the stored offsets.",
            remedy="Create it with `from tailrace.projections import projection_app`.",
        )
    return found


def _import(module: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except TailraceError:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or module
        if module == missing or module.startswith(f"{missing}."):
            raise ConfigError(
                f"there is no module {missing!r}",
                why=f"It is neither in {here} nor installed.",
                remedy="Run this command in the folder that contains it.",
            ) from None
        raise ConfigError(
            f"{module} imports {missing}, which is not installed", remedy="Install it in this environment."
        ) from None
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        where = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (place.filename, place.lineno)
        raise ConfigError(
            f"{module} cannot be imported: {type(error).__name__}: {text}",
            why=f"{where[0]}, line {where[1]}.",
            remedy=f"Run `python -c 'import {module}'` to see the traceback.",
        ) from error
