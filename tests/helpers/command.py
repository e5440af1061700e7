"""Runs `tailrace` commands in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tailrace.cli import main

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
