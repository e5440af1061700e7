"""Opens a RocksDB folder. Refuses one that is in use, damaged, or not ours."""

from __future__ import annotations

import re
from pathlib import Path

from rocksdict import Options, Rdict

from tailrace.errors import StoreFailed, StoreInUse

DEFAULT = "default"
_UNFINISHED = re.compile(r"(LOCK|LOG.*|IDENTITY|MANIFEST-\d+|OPTIONS-.*|.*\.dbtmp|rocksdict-config\.json)")
"""Files of a folder whose creation was interrupted."""
_LOG_FILES = 5
_MEMORY = 64 * 1024 * 1024
"""How much may be in memory before it is written to sorted files, all families together."""


def in_use(path: Path, why: str) -> StoreInUse:
    return StoreInUse(
        f"the RocksDB folder {path} is in use",
        why=why,
        remedy="Run one worker for this projection, and stop it before other commands that open its store.",
    )


def open_folder(path: Path, own: str) -> tuple[Rdict, dict[str, Rdict]]:
    """Opens or creates a folder; returns the database and its families by name. `own` is a family that ours have."""
    try:
        existing = _existing_families(path)
        if existing is None:
            path.mkdir(parents=True, exist_ok=True)
        names = existing or [DEFAULT]
        root = Rdict(str(path), _options(), column_families={name: _family_options() for name in names})
    except StoreFailed:
        raise
    except Exception as error:
        if f"{path}/LOCK" in str(error):
            raise in_use(path, "Another process has opened it, or another library in this process.") from error
        raise _failed(path, str(error), "Restore the folder, or delete it") from error
    if own not in names:
        if names != [DEFAULT] or next(iter(root.keys()), None) is not None:
            root.close()
            raise _failed(path, "It is a RocksDB folder of another application.", "Give the store another path")
        # Created first, so that a folder without it is either new or not ours.
        create_family(root, own).close()
        names = [*names, own]
    return root, {name: root.get_column_family(name) for name in names}


def create_family(root: Rdict, name: str) -> Rdict:
    return root.create_column_family(name, _family_options())


def _existing_families(path: Path) -> list[str] | None:
    """Returns the families of the folder; None if it does not exist yet, or was never completed."""
    if not path.exists():
        return None
    if not path.is_dir():
        raise _failed(path, "It is a file.", "Give the store another path")
    if not (path / "CURRENT").exists():
        others = [each.name for each in path.iterdir() if not _UNFINISHED.fullmatch(each.name)]
        if others:
            why = f"It has no file CURRENT, but other files, such as {min(others)}."
            raise _failed(path, why, "Give the store another path, or restore the folder")
        return None
    return Rdict.list_cf(str(path), _options())


def _failed(path: Path, why: str, remedy: str) -> StoreFailed:
    return StoreFailed(
        f"{path} cannot be opened as a RocksDB store",
        why=why,
        remedy=f"{remedy}: with an empty folder, the projection reads its topics from their beginning.",
    )


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_keep_log_file_num(_LOG_FILES)
    options.set_db_write_buffer_size(_MEMORY)
    options.set_paranoid_checks(True)
    return options


def _family_options() -> Options:
    return Options(raw_mode=True)
