"""The archive: old outbox rows in Parquet files, a manifest of the files, and a source that reads them again."""

from __future__ import annotations

from importlib.util import find_spec

from tailrace.errors import ConfigError, install_remedy

LIBRARIES = ("obstore", "pyarrow")


def require_installed() -> None:
    """Raises ConfigError unless the optional libraries are installed; call it before importing other modules here."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"an archive needs {' and '.join(missing)}, which is not installed", remedy=install_remedy("archive")
        )
