"""Runs a projection app: Faust's worker, which reports its final error as text and as an exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from typing import Any, NoReturn

import faust
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
)
from faust.types import AppT
from mode import ServiceT

from tailrace.errors import KafkaUnavailable, ReadRefused, TailraceError, Unavailable

EXIT_SECONDS = 10.0
"""The process exits this long after SIGTERM or a failure. That is safe: the store has a whole batch or nothing."""
REFUSALS = (TopicAuthorizationFailedError, GroupAuthorizationFailedError, ClusterAuthorizationFailedError)


class ProjectionWorker(faust.Worker):
    """The worker of both `tailrace project` and `faust worker`."""

    logger = logging.getLogger("faust.projections")

    def __init__(self, app: AppT, *services: ServiceT, **options: Any) -> None:  # noqa: ANN401 - Faust's own
        # The `faust worker` command has enabled it, and would report a server that is never started.
        app.conf.web_enabled = bool(getattr(app, "wants_web", False))
        super().__init__(app, *services, **options)
        self._stop_requested = False

    def run(self) -> None:
        """Returns after SIGTERM or SIGINT; raises the error that ended the app."""
        try:
            super().execute_from_commandline()
        except SystemExit as end:
            # Faust exits with code 1 for every reason; the reason itself is kept separately.
            reason = self.crash_reason or end.__context__
            if end.code and isinstance(reason, Exception):
                error = translate_error(reason)
                # Services that are stopped while they connect fail like this: nothing is wrong.
                if self._stop_requested and isinstance(error, Unavailable):
                    return
                raise error from reason
            if end.code:
                raise

    def execute_from_commandline(self) -> NoReturn:
        try:
            self.run()
        except TailraceError as error:
            sys.stderr.write(f"{error}\n")
            raise SystemExit(error.exit_code) from None
        except Exception:  # noqa: BLE001 - Faust has logged it
            raise SystemExit(1) from None
        raise SystemExit(0)

    def on_setup_root_logger(self, logger: logging.Logger, level: int) -> None:
        super().on_setup_root_logger(logger, level)
        filter_repeated_errors()

    def _crash(self, reason: BaseException) -> None:
        _exit_in_time(reason)
        super()._crash(reason)

    def _on_sigint(self) -> None:
        self._stop_requested = True
        _exit_in_time()
        super()._on_sigint()

    def _on_sigterm(self) -> None:
        self._stop_requested = True
        _exit_in_time()
        super()._on_sigterm()

    def _on_sigusr1(self) -> None:
        """Does nothing: Faust would print all tasks with their values, payloads and passwords included."""

    def _on_sigusr2(self) -> None:
        """Does nothing: Faust would start a debugger."""


class _RepeatedErrors(logging.Filter):
    """Drops Faust's log records of an error that ends the worker: each of its services would log it again."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(("mode", "faust")):
            return True
        values = [*(record.exc_info or ()), *(record.args if isinstance(record.args, tuple) else ())]
        ending = any(isinstance(each, TailraceError | KafkaError) for each in values)
        return not ending and "Reraising original" not in record.getMessage()


def filter_repeated_errors() -> None:
    """Adds the filter to the handlers that the root logger has now."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_RepeatedErrors())


def _exit_in_time(reason: BaseException | None = None) -> None:
    """Ends the process after EXIT_SECONDS, even if services are still waiting for something."""
    timer = threading.Timer(EXIT_SECONDS, _exit, (reason,))
    timer.daemon = True
    timer.start()


def _exit(reason: BaseException | None) -> None:
    error = translate_error(reason) if isinstance(reason, Exception) else reason
    if error is not None:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
    os._exit(error.exit_code if isinstance(error, TailraceError) else 0 if error is None else 1)


def translate_error(reason: Exception) -> Exception:
    """Returns Tailrace's error for an error of Kafka; others unchanged."""
    if isinstance(reason, REFUSALS):
        return ReadRefused(
            f"Kafka refuses: {type(reason).__name__}",
            why=str(reason),
            remedy="Allow this user to read the topics and the consumer group of the app's name.",
        )
    if isinstance(reason, KafkaError | asyncio.TimeoutError):
        return KafkaUnavailable(
            f"the consumer cannot continue: {type(reason).__name__}", why=str(reason), remedy="Restart the worker."
        )
    return reason
