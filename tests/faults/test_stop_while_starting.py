"""A stop signal during the start of `tailrace run`, `worker` or `project` ends the process with exit code 0.

The earliest moment tested is the import of the first module after `tailrace.cli`. Before Python has loaded that one, no
code of Tailrace runs, and a signal ends the process as the operating system does by default.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.tiers import mostly_slow

SETTINGS = """\
pipeline: orders
source: {postgres: postgresql://nobody@127.0.0.1:1/shop, table: public.outbox}
kafka: {bootstrap: "127.0.0.1:1"}
"""
APP = """\
from tailrace.projections import PostgresStore, Projection, projection_app

app = projection_app("shop", broker="kafka://127.0.0.1:1")
projection = Projection(app, "orders", store=PostgresStore("postgresql://nobody@127.0.0.1:1/shop"))

@projection.on()
async def ignore(event, effects):
    pass
"""

SIGNALLED = """\
import os, runpy, signal, sys

class SignalAtImport:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), number)

number, wanted, program, *sys.argv = int(sys.argv[1]), *sys.argv[2:]
sys.meta_path.insert(0, SignalAtImport())
sys.argv.insert(0, program)
runpy.run_module("tailrace", run_name="__main__") if program == "-m" else runpy.run_path(program, run_name="__main__")
"""
"""Runs the command and sends itself a signal when the module `wanted` is about to be imported."""

CONSOLE_SCRIPT = str(Path(sys.executable).with_name("tailrace"))
assert shutil.which(CONSOLE_SCRIPT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders.yaml").write_text(SETTINGS)
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def ended(folder: Path, number: int, module: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SIGNALLED, str(number), module, program, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("program", ["-m", CONSOLE_SCRIPT], ids=["module", "script"])
@pytest.mark.parametrize(
    "module",
    ["typer", "tailrace.cli.run", "tailrace.config.load", "psycopg", "confluent_kafka", "tailrace.worker.wiring"],
)
def test_a_stop_signal_during_the_imports_of_run_ends_it_cleanly(folder: Path, module: str, program: str) -> None:
    done = ended(folder, signal.SIGTERM, module, program, "run", "orders.yaml")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "module", ["typer", "tailrace.cli.worker", "tailrace.manager.manager", "uvicorn", "tailrace.api.app"]
)
def test_a_stop_signal_during_the_imports_of_worker_ends_it_cleanly(folder: Path, module: str) -> None:
    done = ended(folder, signal.SIGTERM, module, "-m", "worker", ".", "--http", "0", "--log-text")
    assert done.returncode == 0
    assert "Error" not in done.stderr


def test_ctrl_c_during_the_imports_of_run_ends_it_cleanly(folder: Path) -> None:
    done = ended(folder, signal.SIGINT, "psycopg", "-m", "run", "orders.yaml")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "module", ["typer", "tailrace.cli.project.command", "faust", "tailrace.projections.faust.worker"]
)
def test_a_stop_signal_during_the_imports_of_project_ends_it_cleanly(folder: Path, module: str) -> None:
    done = ended(folder, signal.SIGTERM, module, "-m", "project", "shop:app")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stop_signal_does_not_make_a_reset_look_done(folder: Path) -> None:
    done = ended(
        folder, signal.SIGTERM, "tailrace.cli.project.actions", "-m", "project", "shop:app", "--reset", "latest"
    )
    assert done.returncode == -signal.SIGTERM


@pytest.mark.parametrize("command", [("recover", "apply", "orders.yaml"), ("replay", "apply", "plan.json")])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_during_other_imports_interrupts_the_command(
    folder: Path, number: int, command: tuple[str, ...]
) -> None:
    done = ended(folder, number, "typer", "-m", *command)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


RUN, PROJECT = ("run", "orders.yaml"), ("project", "shop:app")


def catches(process: subprocess.Popen[bytes], number: int) -> bool:
    """Whether the process has a handler for the signal, as Linux reports it."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("command", mostly_slow([RUN, PROJECT], [RUN]), ids=["run", "project"])
def test_a_stop_signal_at_any_time_after_the_first_line_ends_it_cleanly(folder: Path, command: tuple[str, ...]) -> None:
    """Every start is stopped a little later than the one before, from its imports to its attempts to connect."""
    for delay in (0, 0.1, 0.3, 0.6, 1, 1.5, 2.5, 4):
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace", *command], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            while not catches(process, signal.SIGTERM):
                assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(delay)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
        assert process.returncode == 0, f"stopped {delay} s after the start: {errors.decode()}"
        assert b"Traceback" not in errors
