"""Processes under measurement: the connector and pg_recvlogical, their CPU time, memory and duration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tailrace.testkit.stack import PostgresServer

TAILRACE = ("-m", "tailrace")
TICK = os.sysconf("SC_CLK_TCK")
POLL_SECONDS = 0.01
"""Seconds between two checks of a process: the precision of its time, a hundredth of the shortest drain."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The cost of draining a backlog."""

    events: int
    seconds: float
    cpu_seconds: float
    peak_mb: float

    @property
    def rate(self) -> float:
        return self.events / self.seconds


class Connector:
    """One `tailrace run`, watched through /proc."""

    def __init__(
        self, file: Path, program: Sequence[str] = TAILRACE, environment: Mapping[str, str] | None = None
    ) -> None:
        """`program` is what Python runs instead of `-m tailrace`, `environment` is added to the own one."""
        self.log = file.with_suffix(".log")
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *program, "run", str(file), "--log-json"],
                stdout=output,
                stderr=output,
                env={**os.environ, **(environment or {})},
            )
        watch(lambda: b'"running"' in self.log.read_bytes() or self.process.poll() is not None, 60)
        if self.process.poll() is not None:
            raise RuntimeError(self.log.read_text())

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def peak_mb(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("no VmHWM")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def watch(done: Callable[[], bool], timeout: float) -> None:
    """Polls every POLL_SECONDS until `done`: `wait_until` polls less and less often, which would be measured here."""
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not done within {timeout:.0f} s")
        time.sleep(POLL_SECONDS)


def write_pipeline(folder: Path, name: str, dsn: str, bootstrap: str, schema: dict[str, Any], **kafka: Any) -> Path:
    """Writes a pipeline file as a user would: exactly-once, validation on."""
    schemas = folder / "schemas" / "OrderPlaced"
    schemas.mkdir(parents=True, exist_ok=True)
    (schemas / "1.json").write_text(json.dumps(schema))
    file = folder / f"{name}.yaml"
    settings = {
        "pipeline": name,
        "source": {"postgres": dsn, "table": "public.outbox"},
        "schemas": {"folder": "schemas"},
        "topics": {"template": f"{name}.{{aggregate}}", "partitions": 3},
        "kafka": {"bootstrap": bootstrap, **kafka},
    }
    file.write_text(json.dumps(settings))
    return file


def drain(
    file: Path,
    dsn: str,
    slot: str,
    end_lsn: str,
    events: int,
    *,
    program: Sequence[str] = TAILRACE,
    environment: Mapping[str, str] | None = None,
) -> Drain:
    """Runs the connector until it has confirmed `end_lsn`, timed from the moment it streams."""
    connector = Connector(file, program, environment)
    try:
        began, cpu = time.monotonic(), connector.cpu_seconds()
        with psycopg.connect(dsn, autocommit=True) as connection:

            def done() -> bool:
                row = connection.execute(
                    "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
                    (end_lsn, slot),
                ).fetchone()
                return bool(row and row[0])

            watch(done, 600)
        seconds = time.monotonic() - began
        return Drain(events, seconds, connector.cpu_seconds() - cpu, connector.peak_mb())
    finally:
        connector.stop()


def receive(server: PostgresServer, dsn: str, slot: str, publication: str, end_lsn: str, events: int) -> Drain:
    """Times `pg_recvlogical` reading the same backlog into /dev/null."""
    assert server.bin_dir is not None
    began = time.monotonic()
    usage = os.times()
    subprocess.run(
        [
            str(server.bin_dir / "pg_recvlogical"), "-d", dsn, "--slot", slot, "--start", "--no-loop",
            "-f", "/dev/null", "-o", "proto_version=1", "-o", f"publication_names={publication}", "--endpos", end_lsn,
        ],
        check=True,
        timeout=600,
    )  # fmt: skip
    after = os.times()
    cpu = after.children_user + after.children_system - usage.children_user - usage.children_system
    return Drain(events, time.monotonic() - began, cpu, 0.0)
