"""Shows the ends of the logs that the processes of a failed test have written to its folder."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

LINES = 30
"""Lines shown of each log."""
LOGS = 4
"""Logs shown, those that were written to last."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if call.when == "call" and report.failed and isinstance(folder, Path):
        report.sections += logs_in(folder)
    return report


def logs_in(folder: Path) -> list[tuple[str, str]]:
    """Returns the name and the end of each log."""
    logs = sorted(folder.rglob("*.log"), key=lambda file: file.stat().st_mtime)
    return [(file.name, "\n".join(_last_lines(file))) for file in logs[-LOGS:]]


def _last_lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES:]
