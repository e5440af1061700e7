"""A worker whose temporary folder has too long a path says so, instead of reporting crashes of all its pipelines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.cli import main
from tailrace.manager.spawn import LONGEST_TEMP_FOLDER

START = """
import multiprocessing
from tailrace.manager.spawn import WarmProcess
process = WarmProcess().context.Process(target=len, args=("",))
process.start()
process.join()
raise SystemExit(process.exitcode)
"""


@pytest.fixture
def folder() -> Iterator[Callable[[int], Path]]:
    """Creates a folder whose path has this many bytes."""
    base = tempfile.mkdtemp(dir="/tmp")

    def create(length: int) -> Path:
        made = Path(base, "x" * (length - len(base) - 1))
        made.mkdir()
        return made

    yield create
    shutil.rmtree(base)


def test_a_process_starts_with_the_longest_path(folder: Callable[[int], Path]) -> None:
    environment = {**os.environ, "TMPDIR": str(folder(LONGEST_TEMP_FOLDER))}
    subprocess.run([sys.executable, "-c", START], env=environment, check=True, timeout=60)


def test_a_worker_refuses_a_longer_one(
    folder: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder(LONGEST_TEMP_FOLDER + 1)))
    with pytest.raises(SystemExit) as caught:
        main(["worker", str(tmp_path), "--http", "127.0.0.1:0"])
    assert caught.value.code == 2
    assert "TMPDIR" in capsys.readouterr().err
