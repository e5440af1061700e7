"""Everything else works without the libraries of the archive, and the archive names what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tailrace.archive import require_installed
from tailrace.errors import ConfigError


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require_installed()
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match="needs obstore") as caught:
        require_installed()
    assert ".[archive]" in caught.value.remedy


def test_no_other_command_imports_them() -> None:
    program = (
        "import sys; import tailrace.cli.archive\n"
        "import tailrace.cli.replay.command, tailrace.cli.run, tailrace.replay.apply; "
        "print([name for name in ('pyarrow', 'obstore') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
