"""Where an archive is: a folder, a bucket. Objects are only ever created; nothing is overwritten.

obstore talks to all of them. A name is taken once: `create` on one that is there is an error of its own, whoever comes
first. In a folder of this machine what is created is also made durable, for the rows are deleted right after, and
readable by its owner only. Symbolic links in it are not part of the archive. That folder is never created: where a disk
is not mounted, an empty archive would be begun in its place.
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
"""For a whole file, up or down; the client's own 30 s are too few for one of 128 MB on a slow line."""
OF_THE_CLIENT = frozenset(
    {
        "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only",
        "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_max_frame_size",
        "http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes",
        "proxy_url", "randomize_addresses", "read_timeout", "timeout", "user_agent",
    }
)  # fmt: skip
"""Options of any connection; the others are those of the kind of store."""

ENVIRONMENT = {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_"}
"""What the names of a store's options begin with there."""


class AlreadyExistsError(Exception):
    """There is an object of this name already."""


class ObjectStore:
    """The objects below an address."""

    def __init__(self, url: str, options: Mapping[str, str], *under: str) -> None:
        """`under` are folders below the address; slashes in their names are none."""
        parts = [part.replace("/", "_") for part in under]
        self.url = "/".join([url, *parts])
        self._folder = Path(url.removeprefix("file://")) if url.startswith("file://") else None
        # What is below a folder is made with the first object: looking leaves no trace.
        self._prefix = "" if self._folder is None else "".join(f"{part}/" for part in parts)
        with self._words("opening the archive"):
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
        """All objects and their sizes."""
        with self._words("listing the archive"):
            found = [each for page in obstore.list(self._store, prefix=self._prefix or None) for each in page]
            sizes = {str(each["path"]): int(each["size"]) for each in found}
            return {path.removeprefix(self._prefix): sizes[path] for path in sizes if not self._is_linked(path)}

    def create(self, name: str, content: bytes | Path) -> None:
        """TakenError if there is such an object."""
        with self._words(f"writing {name}"):
            if self._folder is not None:
                _require_there(self._folder)
            with _for_owner_only():
                obstore.put(self._store, self._prefix + name, content, mode="create")
            if self._folder is not None:
                _settle(self._folder, self._folder / self._prefix / name)

    def chunks(self, name: str) -> Iterator[bytes]:
        """What the object holds."""
        with self._words(f"reading {name}"):
            for chunk in obstore.get(self._store, self._prefix + name).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    def read(self, name: str) -> bytes:
        return b"".join(self.chunks(name))

    def remove(self, name: str) -> None:
        """Only what this process has created itself, and not listed."""
        with self._words(f"removing {name}"):
            obstore.delete(self._store, self._prefix + name)

    def _is_linked(self, path: str) -> bool:
        """Whether the way to a file of the folder leads over a symbolic link."""
        parts = Path(path).parts
        return self._folder is not None and any(
            self._folder.joinpath(*parts[:depth]).is_symlink() for depth in range(1, len(parts) + 1)
        )

    @contextmanager
    def _words(self, doing: str) -> Iterator[None]:
        try:
            yield
        except known.AlreadyExistsError:
            raise AlreadyExistsError from None
        except (known.NotFoundError, FileNotFoundError):
            raise ArchiveDamaged(
                f"{doing}: there is no such object in {self.url}",
                why="It was deleted or moved, or the address is another's.",
                remedy="Put it back from a copy of the archive, or correct archive.url. Nothing was changed.",
            ) from None
        except (known.PermissionDeniedError, known.UnauthenticatedError, PermissionError) as error:
            raise ArchiveError(
                f"{doing}: refused",
                why=_first(error),
                remedy="Give the credentials in the environment (AWS_ACCESS_KEY_ID …) or in archive.options; they must "
                "allow to list, read and write objects below archive.url.",
            ) from None
        except known.NotSupportedError as error:
            raise ArchiveError(
                f"{doing}: the store does not know how",
                why=_first(error),
                remedy="Take one that can create an object only if there is none yet: a folder, S3, GCS, Azure.",
            ) from None
        except (known.UnknownConfigurationKeyError, known.InvalidPathError, ValueError, TypeError) as error:
            raise ConfigError(
                f"the archive cannot be opened at {self.url}: {_first(error)}",
                remedy="Correct archive.url and archive.options.",
            ) from None
        except (known.BaseError, OSError) as error:
            raise ArchiveUnavailable(
                f"{doing}: {self.url} gives no answer that helps",
                why=_first(error),
                remedy="See that it can be reached, then run it again: it goes on where it was.",
            ) from None


def _from_environment(url: str) -> dict[str, str]:
    """Options of the connection, which obstore does not look for there once it is given one."""
    kind = url.partition("://")[0]
    prefix = ENVIRONMENT.get(kind, "AZURE_")
    named = {name: os.environ.get(prefix + name.upper()) for name in OF_THE_CLIENT}
    return {name: value for name, value in named.items() if value is not None}


def _require_there(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder {folder}, which archive.url names",
            why="Its disk is not mounted, or it was never made. Tailrace does not make it: an empty archive would "
            "stand for the one that is away.",
            remedy=f"Mount the disk; or, for a new archive, mkdir -p {folder}",
        )


@contextmanager
def _for_owner_only() -> Iterator[None]:
    """Files and folders made meanwhile are readable by their owner only: outbox rows are nobody else's business."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _settle(folder: Path, file: Path) -> None:
    """Onto the disk, and every folder on the way to it: those below `folder` may have just been made."""
    for each in (file, *file.parents):
        handle = os.open(each, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        if each == folder:
            break


def _first(error: BaseException) -> str:
    """The driver's own words without what it adds for its developers; an endpoint may have a password in it."""
    return hide_passwords(" ".join(str(error).split("\n\nDebug source")[0].split()))[:300]
