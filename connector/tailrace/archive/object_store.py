"""The store of an archive: a folder or a bucket. Objects are created and deleted, never overwritten.

obstore supports all of them. `create` fails if the name exists. In a local folder, new files are synced to disk,
because the rows are deleted right after, and are readable by the owner only. Symbolic links in it are ignored. The
folder itself is never created: if a disk is not mounted, an empty archive would be started in its place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions as known
from obstore import store

from tailrace.config.secrets import hide_passwords
from tailrace.errors import ArchiveDamaged, ArchiveError, ArchiveUnavailable, ConfigError

CHUNK_BYTES = 1 << 20
PATIENCE = timedelta(seconds=60)
RETRIES = 4
OBJECT_TIMEOUT = "300s"
"""The timeout for a whole file; the client's default of 30 s is too short for 128 MB on a slow line."""
OF_THE_CLIENT = frozenset(
    {
        "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only",
        "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_max_frame_size",
        "http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes",
        "proxy_url", "randomize_addresses", "read_timeout", "timeout", "user_agent",
    }
)  # fmt: skip
"""Options of any connection; all others belong to the kind of store."""

ENVIRONMENT = {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_"}
"""The prefixes of a store's options in the environment."""


class AlreadyExistsError(Exception):
    """An object of this name exists already."""


class ObjectStore:
    """The objects below a URL."""

    def __init__(self, url: str, options: Mapping[str, str], *under: str) -> None:
        """`under` are folders below the URL; slashes in their names are replaced."""
        parts = [part.replace("/", "_") for part in under]
        self.url = "/".join([url, *parts])
        self._folder = Path(url.removeprefix("file://")) if url.startswith("file://") else None
        # Folders below are created with the first object, so that reading leaves no trace.
        self._prefix = "" if self._folder is None else "".join(f"{part}/" for part in parts)
        with self._translated("opening the archive"):
            if self._folder is not None:
                _require_there(self._folder)
                self._store: Any = store.LocalStore(self._folder)
            else:
                retries: Any = {"max_retries": RETRIES, "retry_timeout": PATIENCE}
                config: Any = {name: value for name, value in options.items() if name not in OF_THE_CLIENT}
                given = {name: value for name, value in options.items() if name in OF_THE_CLIENT}
                client: Any = {"timeout": OBJECT_TIMEOUT, **_from_environment(url), **given}
                self._store = store.from_url(
                    self.url, config=config or None, client_options=client, retry_config=retries
                )

    def names(self) -> dict[str, int]:
        """Returns all objects and their sizes."""
        with self._translated("listing the archive"):
            found = [each for page in obstore.list(self._store, prefix=self._prefix or None) for each in page]
            sizes = {str(each["path"]): int(each["size"]) for each in found}
            return {path.removeprefix(self._prefix): sizes[path] for path in sizes if not self._is_linked(path)}

    def create(self, name: str, content: bytes | Path) -> None:
        """Raises AlreadyExistsError if there is such an object."""
        with self._translated(f"writing {name}"):
            if self._folder is not None:
                _require_there(self._folder)
            with _for_owner_only():
                obstore.put(self._store, self._prefix + name, content, mode="create")
            if self._folder is not None:
                _sync(self._folder, self._folder / self._prefix / name)

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yields the content of the object."""
        with self._translated(f"reading {name}"):
            for chunk in obstore.get(self._store, self._prefix + name).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    def read(self, name: str) -> bytes:
        return b"".join(self.chunks(name))

    def remove(self, name: str) -> None:
        """Deletes an object; it stays deleted after a crash of the machine."""
        with self._translated(f"removing {name}"):
            obstore.delete(self._store, self._prefix + name)
            if self._folder is not None:
                _sync(self._folder, (self._folder / self._prefix / name).parent)

    def _is_linked(self, path: str) -> bool:
        """Returns whether the path to a file of the folder contains a symbolic link."""
        parts = Path(path).parts
        return self._folder is not None and any(
            self._folder.joinpath(*parts[:depth]).is_symlink() for depth in range(1, len(parts) + 1)
        )

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except known.AlreadyExistsError:
            raise AlreadyExistsError from None
        except (known.NotFoundError, FileNotFoundError):
            raise ArchiveDamaged(
                f"{doing}: there is no such object in {self.url}",
                why="It was deleted or moved, or the URL belongs to another archive.",
                remedy="Restore it from a copy of the archive, or correct archive.url. Nothing was changed.",
            ) from None
        except (known.PermissionDeniedError, known.UnauthenticatedError, PermissionError) as error:
            raise ArchiveError(
                f"{doing}: refused",
                why=_message(error),
                remedy="Provide credentials in the environment (AWS_ACCESS_KEY_ID …) or in archive.options. They must "
                "allow to list, read and write objects below archive.url.",
            ) from None
        except known.NotSupportedError as error:
            raise ArchiveError(
                f"{doing}: the store does not support this",
                why=_message(error),
                remedy="Use a store that can create an object only if it does not exist: a folder, S3, GCS, Azure.",
            ) from None
        except (known.UnknownConfigurationKeyError, known.InvalidPathError, ValueError, TypeError) as error:
            raise ConfigError(
                f"the archive cannot be opened at {self.url}: {_message(error)}",
                remedy="Correct archive.url and archive.options.",
            ) from None
        except (known.BaseError, OSError) as error:
            raise ArchiveUnavailable(
                f"{doing}: {self.url} is not available",
                why=_message(error),
                remedy="Make sure that it can be reached, then run it again: it continues where it was.",
            ) from None


def _from_environment(url: str) -> dict[str, str]:
    """Returns connection options from the environment, which obstore ignores once it is given one."""
    kind = url.partition("://")[0]
    prefix = ENVIRONMENT.get(kind, "AZURE_")
    named = {name: os.environ.get(prefix + name.upper()) for name in OF_THE_CLIENT}
    return {name: value for name, value in named.items() if value is not None}


def _require_there(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(
            f"the folder {folder}, which archive.url names, does not exist",
            why="Its disk is not mounted, or it was never created. Tailrace does not create it, because an empty "
            "archive would replace the one that is not mounted.",
            remedy=f"Mount the disk. For a new archive: mkdir -p {folder}",
        )


@contextmanager
def _for_owner_only() -> Iterator[None]:
    """Makes new files and folders readable by their owner only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _sync(folder: Path, file: Path) -> None:
    """Syncs the file and every folder up to `folder` to disk, because they may be new."""
    for each in (file, *file.parents):
        handle = os.open(each, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        if each == folder:
            break


def _message(error: BaseException) -> str:
    """Returns the driver's message without its debug output and without passwords."""
    return hide_passwords(" ".join(str(error).split("\n\nDebug source")[0].split()))[:300]
