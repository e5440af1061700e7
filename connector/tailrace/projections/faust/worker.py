"""Runs a projection app: Faust's worker, but it ends with the error that ended it, in words and as an exit code."""

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
"""SIGTERM and failures end within this time. Leaving in the middle is safe: the store has all of a block or nothing."""
REFUSALS = (TopicAuthorizationFailedError, GroupAuthorizationFailedError, ClusterAuthorizationFailedError)


class ProjectionWorker(faust.Worker):
    """What both `tailrace project` and `faust worker` run."""

    logger = logging.getLogger("faust.projections")

    def __init__(self, app: AppT, *services: ServiceT, **options: Any) -> None:  # noqa: ANN401 - Faust's own
        # The `faust worker` command has switched it on by now, and would tell of a server that is never started.
        app.conf.web_enabled = False
        super().__init__(app, *services, **options)
        self._stop_requested = False

    def run(self) -> None:
        """Returns after SIGTERM or SIGINT; raises what the app could not go on with."""
        try:
            super().execute_from_commandline()
        except SystemExit as end:
            # Faust's own ways of ending: the reason stands beside the exit code, which is 1 for all of them.
            reason = self.crash_reason or end.__context__
            if end.code and isinstance(reason, Exception):
                error = for_people(reason)
                # Services that are stopped while they connect fail with that: nothing is wrong then.
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
        tell_errors_once()

    def _crash(self, reason: BaseException) -> None:
        _leave_in_time(reason)
        super()._crash(reason)

    def _on_sigint(self) -> None:
        self._stop_requested = True
        _leave_in_time()
        super()._on_sigint()

    def _on_sigterm(self) -> None:
        self._stop_requested = True
        _leave_in_time()
        super()._on_sigterm()

    def _on_sigusr1(self) -> None:
        """Faust would print all tasks with the values they hold: payloads and passwords."""

    def _on_sigusr2(self) -> None:
        """Faust would start a debugger and stop."""


class _ToldAtTheEnd(logging.Filter):
    """Leaves out what each of Faust's services logs of an error that goes through them all and ends the worker."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(("mode", "faust")):
            return True
        told = [*(record.exc_info or ()), *(record.args if isinstance(record.args, tuple) else ())]
        ending = any(isinstance(each, TailraceError | KafkaError) for each in told)
        return not ending and "Reraising original" not in record.getMessage()


def tell_errors_once() -> None:
    """For the handlers that the root logger has by now."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_ToldAtTheEnd())


def _leave_in_time(reason: BaseException | None = None) -> None:
    """Whatever the services are waiting for while they end."""
    timer = threading.Timer(EXIT_SECONDS, _leave, (reason,))
    timer.daemon = True
    timer.start()


def _leave(reason: BaseException | None) -> None:
    told = for_people(reason) if isinstance(reason, Exception) else reason
    if told is not None:
        sys.stderr.write(f"{told}\n")
        sys.stderr.flush()
    os._exit(told.exit_code if isinstance(told, TailraceError) else 0 if told is None else 1)


def for_people(reason: Exception) -> Exception:
    """Kafka's own errors in our words; others as they are."""
    if isinstance(reason, REFUSALS):
        return ReadRefused(
            f"Kafka refuses: {type(reason).__name__}",
            why=str(reason),
            remedy="Allow this user to read the topics and the consumer group of the app's name.",
        )
    if isinstance(reason, KafkaError | asyncio.TimeoutError):
        return KafkaUnavailable(
            f"the consumer cannot go on: {type(reason).__name__}", why=str(reason), remedy="Start it again."
        )
    return reason
