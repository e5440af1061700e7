"""What an archive takes beside the core: looked for before anything of it is imported."""

from __future__ import annotations

from importlib.util import find_spec

from tailrace.errors import ConfigError, install_remedy

LIBRARIES = ("obstore", "pyarrow")


def require_installed() -> None:
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"an archive needs {' and '.join(missing)}, which is not installed",
            remedy=install_remedy("archive"),
        )
