"""Opens a RocksDB folder. Refuses one that is in use, damaged, or not ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.errors import StoreFailed, StoreInUse

if TYPE_CHECKING:
    # A service may have the outbox without RocksDB.
    from rocksdict import Options, Rdict

DEFAULT = "default"
LOCKED = re.compile(r"while lock file: |lock hold by current process", re.IGNORECASE)
NO_ROOM = "No space left on device"
_UNFINISHED = re.compile(r"(LOCK|LOG.*|IDENTITY|MANIFEST-\d+|OPTIONS-.*|.*\.dbtmp|rocksdict-config\.json)")
"""Files of a folder whose creation was interrupted."""
_LOG_FILES = 5
_READ_ATTEMPTS = 5
_MEMORY = 64 * 1024 * 1024
"""How much may be in memory before it is written to sorted files, all families together."""


@dataclass(frozen=True, slots=True)
class FolderUse:
    """What a folder is used for. `own` is a family that our folders have; the texts complete error messages."""

    own: str
    kind: str
    lost: str
    """What an empty folder would mean."""
    one_user: str
    """How to make sure that one process opens it."""

    def failed(self, path: Path, why: str, remedy: str) -> StoreFailed:
        return StoreFailed(
            f"{path} cannot be opened as {self.kind}", why=why, remedy=f"{remedy}: with an empty folder, {self.lost}."
        )


def open_folder(path: Path, use: FolderUse) -> tuple[Rdict, dict[str, Rdict]]:
    """Opens or creates a folder; returns the database and its families by name."""
    from rocksdict import Rdict

    try:
        existing = _existing_families(path, use)
        if existing is None:
            path.mkdir(parents=True, exist_ok=True)
        names = existing or [DEFAULT]
        root = Rdict(str(path), _options(), column_families={name: _family_options() for name in names})
    except StoreFailed:
        raise
    except Exception as error:
        if found := LOCKED.search(str(error)):
            who = "This process has opened it already" if "current" in found[0] else "Another process has opened it"
            raise StoreInUse(
                f"the RocksDB folder {path} is in use", why=f"{who}: RocksDB allows one.", remedy=use.one_user
            ) from error
        if NO_ROOM in str(error):
            raise StoreFailed(
                f"{path} cannot be opened as {use.kind}", why=str(error), remedy="Make room on its disk."
            ) from error
        raise use.failed(path, str(error), "Restore the folder, or delete it") from error
    if use.own not in names:
        if names != [DEFAULT] or next(iter(root.keys()), None) is not None:
            root.close()
            raise use.failed(path, "It is a RocksDB folder of another application.", "Give the store another path")
        # Created first, so that a folder without it is either new or not ours.
        create_family(root, use.own).close()
        names = [*names, use.own]
    return root, {name: root.get_column_family(name) for name in names}


@contextmanager
def reading_folder(path: Path, use: FolderUse) -> Iterator[Rdict | None]:
    """Gives the family `own` of a folder as it is on disk now, None if it does not exist.

    Another process may have it open and go on writing: nothing is locked, and nothing is created.
    """
    for attempt in range(_READ_ATTEMPTS):
        try:
            root = _read_only(path, use)
            break
        except StoreFailed:
            raise
        except Exception as error:
            # The process that writes has perhaps just replaced a file.
            if attempt + 1 == _READ_ATTEMPTS:
                raise StoreFailed(
                    f"{path} cannot be read",
                    why=str(error),
                    remedy="Check that this user may read the folder, and try again.",
                ) from error
    try:
        yield None if root is None else root.get_column_family(use.own)
    finally:
        if root is not None:
            root.close()


def _read_only(path: Path, use: FolderUse) -> Rdict | None:
    from rocksdict import AccessType, Rdict

    existing = _existing_families(path, use)
    if existing is None:
        return None
    if use.own not in existing:
        raise use.failed(path, "It is a RocksDB folder of another application.", "Give the store another path")
    families = {name: _family_options() for name in existing}
    return Rdict(str(path), _options(), column_families=families, access_type=AccessType.read_only())


def create_family(root: Rdict, name: str) -> Rdict:
    return root.create_column_family(name, _family_options())


def _existing_families(path: Path, use: FolderUse) -> list[str] | None:
    """Returns the families of the folder; None if it does not exist yet, or was never completed."""
    from rocksdict import Rdict

    if not path.exists():
        return None
    if not path.is_dir():
        raise use.failed(path, "It is a file.", "Give the store another path")
    if not (path / "CURRENT").exists():
        others = [each.name for each in path.iterdir() if not _UNFINISHED.fullmatch(each.name)]
        if others:
            why = f"It has no file CURRENT, but other files, such as {min(others)}."
            raise use.failed(path, why, "Give the store another path, or restore the folder")
        return None
    return Rdict.list_cf(str(path), _options())


def _options() -> Options:
    from rocksdict import Options

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_keep_log_file_num(_LOG_FILES)
    options.set_db_write_buffer_size(_MEMORY)
    options.set_paranoid_checks(True)
    return options


def _family_options() -> Options:
    from rocksdict import Options

    return Options(raw_mode=True)
