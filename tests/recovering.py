"""What tests ask of `tailrace recover`: run as a process of its own, and the oracle's word on what it left behind."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from typing import Any

import pytest
import typer

from fix_service import Service
from tailrace.cli.recover import app
from tailrace.config.load import load_pipeline
from tailrace.errors import TailraceError
from tailrace.kafka import ledger
from tailrace.kafka.ledger import Entry
from tailrace.proof.oracle import Verdict, backward
from tailrace.proof.reader import stored_positions
from tailrace.worker.assembly import kafka_options

PATIENCE = 180
"""Seconds for one command: a transaction that was left open holds readers up for a minute."""


def recover(service: Service, command: str, *arguments: str, kill: str = "") -> subprocess.CompletedProcess[str]:
    """`tailrace recover plan|apply`, as JSON."""
    return subprocess.run(
        [sys.executable, "-m", "tailrace", "recover", command, str(service.file), "--json", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "TAILRACE_KILL": kill},
    )


def plan(service: Service, *arguments: str) -> dict[str, Any]:
    return _told(service, "plan", *arguments)


def apply(service: Service, *arguments: str) -> dict[str, Any]:
    """To its end."""
    return _told(service, "apply", "--yes", *arguments)


def refused(service: Service, code: str, *arguments: str) -> str:
    """It must not be done, by this error; what was said."""
    with pytest.raises(TailraceError) as error:
        _told(service, "apply", "--yes", *arguments)
    assert error.value.code == code, error.value
    return str(error.value)


def report(service: Service, command: str, *arguments: str) -> str:
    """What a person is shown; in this process, which is cheaper to start."""
    said = io.StringIO()
    with redirect_stdout(said):
        typer.main.get_command(app)([command, str(service.file), *arguments], standalone_mode=False)
    return said.getvalue()


def _told(service: Service, command: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report(service, command, "--json", *arguments))
    return found


def right(service: Service) -> Verdict:
    """Nothing is missing and nothing is twice; positions go forward from the last one of the recovery on."""
    verdict = service.caught_up()
    topic = service.settings["kafka"].get("offsets_topic", "tailrace-offsets")
    stored = stored_positions(service.kafka.bootstrap, service.name, topic)
    marked = [number for number, position in enumerate(stored) if getattr(position, "recovery", None)]
    assert marked, "no recovery has stored anything"
    verdict.positions = backward([position.progress for position in stored[marked[-1] :]])
    assert verdict.ok, verdict
    return verdict


def entries(service: Service) -> list[Entry]:
    return ledger.read(kafka_options(load_pipeline(service.file)))
