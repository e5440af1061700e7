"""`tailrace run`: runs one pipeline in the foreground until SIGTERM or a permanent error."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from tailrace.cli.log_option import LogJson
from tailrace.cli.stop_signals import run_beside
from tailrace.config.load import load_pipeline
from tailrace.config.model import PipelineSettings
from tailrace.errors import TailraceError
from tailrace.worker import logs
from tailrace.worker.supervisor import Recover, Supervisor
from tailrace.worker.wiring import wire

M_ARENA_MAX = -8
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
    log_json: LogJson = None,
) -> None:
    """Tail an outbox and publish its events to Kafka, until SIGTERM.

    SIGTERM and SIGINT finish the current batch, confirm it and exit within 5 s with code 0, also during the start.
    Temporary errors are retried; all others end the process with a named error, its cause and its remedy. No events are
    lost. If another instance runs the pipeline, this one waits and takes over when that one ends.

    Examples:

        tailrace run orders.yaml

        TAILRACE_KAFKA__BOOTSTRAP=kafka:9092 tailrace run orders.yaml --log-json
    """
    logs.configure(as_json=log_json)
    settings = load_pipeline(file)
    log = logs.StructuredLogger(pipeline=settings.pipeline)
    supervisor = Supervisor(
        wire(settings, adopt=adopt, warn=lambda what: log.warning("notice", what=what)), recover=_recover(settings)
    )
    _use_one_heap()
    _reduce_garbage_collection()

    def on_signal(number: int, _: FrameType | None) -> None:
        # Started first: the process must exit in time even if the pipeline waits.
        leave = threading.Timer(EXIT_SECONDS, _leave, (log,))
        leave.daemon = True
        leave.start()
        supervisor.stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    try:
        run_beside(supervisor.run)
    except TailraceError as error:
        if error is not supervisor.failure:
            raise
        raise typer.Exit(error.exit_code) from None  # it is already logged


def _leave(log: logs.StructuredLogger) -> NoReturn:
    log.warning("stopped", what="a server did not answer in time; the next start resumes at the stored position")
    os._exit(0)


def _recover(settings: PipelineSettings) -> Recover | None:
    if settings.source.on_log_loss == "halt":
        return None
    from tailrace.recovery.apply import recover

    return recover


def _use_one_heap() -> None:
    """Makes all threads share one heap: records are allocated by one thread and freed by another.

    With glibc's heap per thread, freed memory would not be available to the other threads.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
    if set_option is not None:
        set_option(M_ARENA_MAX, 1)


def _reduce_garbage_collection() -> None:
    # Events are freed by reference counts; the cyclic collector would only traverse each batch again and again. What
    # exists now stays for the life of the process, so it is excluded.
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
