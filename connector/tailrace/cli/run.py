"""`tailrace run`: runs one pipeline in the foreground until SIGTERM or a permanent error."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from tailrace.cli.http_option import HttpSettingsFile
from tailrace.cli.log_option import LogJson
from tailrace.cli.metrics_option import MetricsPrefix
from tailrace.cli.stop_signals import run_beside
from tailrace.config.load import load_pipeline
from tailrace.errors import TailraceError
from tailrace.manager.process import recovery_for
from tailrace.manager.watchdog import PipelineWatch
from tailrace.worker import logs
from tailrace.worker.memory import reduce_garbage_collection, use_one_heap
from tailrace.worker.supervisor import Supervisor
from tailrace.worker.wiring import wire

EXIT_SECONDS = 5.0
"""SIGTERM ends the process within this time. Exiting without the last commit is safe: the next start publishes it."""


def run(
    file: Path = typer.Argument(..., help="The pipeline's settings, such as orders.yaml."),
    adopt: bool = typer.Option(
        False,
        "--adopt",
        help="Accept the current slot and publication, for this start only. Use it when an error tells you to. Missed "
        "events are never published; `tailrace recover` publishes them.",
    ),
    http: str = typer.Option(
        "",
        "--http",
        metavar="[HOST:]PORT",
        help="Also open an HTTP port with metrics, health checks and the APIs of `tailrace worker`. PORT alone is "
        "reachable from this machine only.",
    ),
    http_settings: HttpSettingsFile = None,
    metrics_prefix: MetricsPrefix = "tailrace",
    log_json: LogJson = None,
) -> None:
    """Tail an outbox and publish its events to Kafka, until SIGTERM.

    SIGTERM and SIGINT finish the current batch, confirm it and exit within 5 s with code 0, also during the start.
    Temporary errors are retried; all others end the process with a named error, its cause and its remedy. No events are
    lost. If another instance runs the pipeline, this one waits and takes over when that one ends.

    Examples:

        tailrace run orders.yaml

        TAILRACE_KAFKA__BOOTSTRAP=kafka:9092 tailrace run orders.yaml --log-json

        tailrace run orders.yaml --http 8083
    """
    logs.configure(as_json=log_json)
    if http:
        as_json = logs.is_json(log_json)
        _run_with_http(file, http, http_settings, adopt=adopt, as_json=as_json, metrics_prefix=metrics_prefix)
    settings = load_pipeline(file)
    log = logs.StructuredLogger(pipeline=settings.pipeline)
    wiring = wire(settings, adopt=adopt, warn=lambda what: log.warning("notice", what=what))
    supervisor = Supervisor(wiring, recover=recovery_for(settings))
    watch = PipelineWatch(wiring, supervisor)
    use_one_heap()
    reduce_garbage_collection()

    def on_signal(number: int, _: FrameType | None) -> None:
        # Started first: the process must exit in time even if the pipeline waits.
        leave = threading.Timer(EXIT_SECONDS, _leave, (log,))
        leave.daemon = True
        leave.start()
        supervisor.stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    watch.start()
    try:
        run_beside(supervisor.run)
    except TailraceError as error:
        if error is not supervisor.failure:
            raise
        raise typer.Exit(error.exit_code) from None  # it is already logged
    finally:
        watch.close()


def _run_with_http(
    file: Path, http: str, http_settings: Path | None, *, adopt: bool, as_json: bool, metrics_prefix: str
) -> NoReturn:
    """Runs the pipeline in a process of its own, without restarts; exits with its exit code."""
    from tailrace.cli.worker import protection_of, serve
    from tailrace.manager.manager import PipelineManager
    from tailrace.manager.restarts import RestartPolicy

    protection = protection_of(http_settings)
    manager = PipelineManager(restarts=RestartPolicy(enabled=False), as_json=as_json)
    start = partial(manager.start_one, file, adopt=adopt)
    serve(manager, http, protection, lambda ended: start(on_end=ended), metrics_prefix=metrics_prefix)


def _leave(log: logs.StructuredLogger) -> NoReturn:
    log.warning("stopped", what="a server did not answer in time; the next start resumes at the stored position")
    os._exit(0)
