"""Deselects the tests marked `docker` if no Docker engine answers, and says so at the end of the run."""

from __future__ import annotations

import pytest

from tailrace.testkit.stack.server import engine_answers


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("docker")]
    if marked and not engine_answers():
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if item not in marked]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not engine_answers():
        terminalreporter.write_line("tests marked `docker` are deselected: no Docker engine answers")
