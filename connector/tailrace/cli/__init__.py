"""The `tailrace` command. `main` handles stop signals before it imports anything slow."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

EXIT_INTERRUPTED = 130
EXIT_ON_STOP = ("run", "worker", "project")
"""A stop signal ends these with exit code 0. They change nothing before they have installed their own handlers."""
INTERRUPT_ON_STOP = ("import", "recover", "replay")
"""SIGTERM interrupts these as Ctrl-C does."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs a command and ends the process with its exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
        _handle_stop_signals(arguments[0] if arguments else "")
    try:
        from tailrace.cli.commands import run_command
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(run_command(list(arguments)))


def _handle_stop_signals(command: str) -> None:
    """Installs the handlers that are in force until the command itself installs others."""
    if command in EXIT_ON_STOP:
        signal.signal(signal.SIGTERM, _exit)
        signal.signal(signal.SIGINT, _exit)
    elif command in INTERRUPT_ON_STOP:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def restore_default_handlers() -> None:
    """Makes stop signals end the process as Python does by default."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(*_: object) -> NoReturn:
    # An exception could be caught by the module that is being imported.
    os._exit(0)
