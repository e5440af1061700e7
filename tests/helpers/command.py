"""Runs `tailrace` commands in this process, and waits for a state in `tailrace status`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli import main
from tailrace.testkit.stack import wait_until

Output = dict[str, Any]
Tailrace = Callable[..., Output]


@pytest.fixture
def tailrace(capsys: pytest.CaptureFixture[str]) -> Tailrace:
    """Runs a command with --json that must exit with `code`; returns the last object it printed."""

    def run(*arguments: object, code: int = 0) -> Output:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([*map(str, arguments), "--json"])
        printed = capsys.readouterr()
        assert caught.value.code == code, printed
        found: Output = json.loads((printed.out or printed.err).splitlines()[-1])
        return found

    return run


def read_status(file: Path, capsys: pytest.CaptureFixture[str]) -> Output:
    """Runs `tailrace status` once; the exit code must fit the state."""
    with pytest.raises(SystemExit) as caught:
        main(["status", str(file), "--json"])
    health: Output = json.loads(capsys.readouterr().out)
    assert caught.value.code == (0 if health["state"] == "RUNNING" else 1)
    return health


def wait_for_state(status: Callable[[], Output], state: str) -> Output:
    """Waits for a state: the server needs a moment to notice that a session is gone."""
    last: Output = {}

    def reached() -> bool:
        last.update(status())
        return bool(last["state"] == state)

    wait_until(reached, 60, what=f"the state {state}")
    return last
