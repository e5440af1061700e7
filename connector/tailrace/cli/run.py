"""`tailrace run`: one pipeline in the foreground, until SIGTERM or an error that needs a person."""

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

from tailrace.cli.stop_signals import run_beside
from tailrace.config.load import load_pipeline
from tailrace.config.model import PipelineSettings
from tailrace.errors import TailraceError
from tailrace.worker import logs
from tailrace.worker.supervisor import Recover, Supervisor
from tailrace.worker.wiring import wire

M_ARENA_MAX = -8
EXIT_SECONDS = 5.0
"""SIGTERM promises an end within this time. Leaving without a last commit is safe: the next start publishes it."""


def run(
    file: Path = typer.Argument(..., help="The pipeline's settings, such as orders.yaml."),
    adopt: bool = typer.Option(
        False,
        "--adopt",
        help="Accept the slot and publication as they are, for this start only. What was missed is given up: `tailrace "
        "recover` publishes it.",
    ),
    log_json: bool = typer.Option(False, "--log-json", help="Log one JSON object a line."),
) -> None:
    """Tail an outbox and publish it to Kafka, until SIGTERM.

    SIGTERM and SIGINT finish the batch at hand, confirm it and leave within 5 s. Trouble that may pass is waited
    out; anything else ends with a named error, its cause and its remedy, and nothing is lost. Beside an instance that
    runs the pipeline already, this one waits, and takes over when that ends.

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
    _share_memory()
    _spare_garbage_collection()

    def on_signal(number: int, _: FrameType | None) -> None:
        # Armed first: whatever the pipeline is waiting for, this process leaves in time.
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
        raise typer.Exit(error.exit_code) from None  # it is logged already


def _leave(log: logs.StructuredLogger) -> NoReturn:
    log.warning("stopped", what="a server did not answer in time: the next start goes on from the stored position")
    os._exit(0)


def _recover(settings: PipelineSettings) -> Recover | None:
    if settings.source.on_log_loss == "halt":
        return None
    from tailrace.recovery.apply import recover

    return recover


def _share_memory() -> None:
    """One heap for all threads: a record is made by one, sent and freed by another.

    With a heap for each, as glibc has it, what is freed in one is not there for the others.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's alone
    if set_option is not None:
        set_option(M_ARENA_MAX, 1)


def _spare_garbage_collection() -> None:
    # Events are freed by reference count; the cyclic collector would only walk over each batch again and again.
    # What is here now stays for good, so it need not be looked at either.
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
