"""An installed package with a provider of tokens, as users write one."""

from __future__ import annotations

from pathlib import Path

import pytest

MAIN = """
import sys
sys.path.insert(0, {folder!r})
from tailrace.cli import main
main(sys.argv[1:])
"""


def install_provider(folder: Path, name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Installs a package whose function `token` is the provider `name`, for this process.

    Returns the program that runs `tailrace` with the package in another process.
    """
    site, module = folder / "site", f"{name}_tokens_under_test"
    info = site / f"{module}-1.dist-info"
    info.mkdir(parents=True)
    (site / f"{module}.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[tailrace.auth]\n{name} = {module}:token\n")
    monkeypatch.syspath_prepend(str(site))
    program = folder / "main.py"
    program.write_text(MAIN.format(folder=str(site)))
    return program
