"""Stores of an archive, a folder and a bucket: an object can be created only once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.s3_server import serve
from tailrace.archive.object_store import OBJECT_TIMEOUT, AlreadyExistsError, ObjectStore
from tailrace.errors import ArchiveDamaged, ArchiveUnavailable, ConfigError


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "folder":
        (tmp_path / "cold").mkdir()
        yield ObjectStore(f"file://{tmp_path}/cold", {}, "orders")
        return
    with serve() as bucket:
        yield ObjectStore(*_of(bucket.settings), "orders")


def _of(settings: dict[str, Any]) -> tuple[str, dict[str, str]]:
    return settings["url"], {name: str(value) for name, value in settings["options"].items()}


def test_created_once_and_read_again(store: ObjectStore, tmp_path: Path) -> None:
    assert store.names() == {}
    file = tmp_path / "large"
    file.write_bytes(bytes(range(256)) * 20_000)
    store.create("rows/1.parquet", file)
    store.create("manifest/00000001.json", b"{}")
    with pytest.raises(AlreadyExistsError):
        store.create("manifest/00000001.json", b"another's")
    with pytest.raises(AlreadyExistsError):
        store.create("rows/1.parquet", file)
    assert store.names() == {"rows/1.parquet": 5_120_000, "manifest/00000001.json": 2}
    assert store.read("manifest/00000001.json") == b"{}"
    chunks = list(store.chunks("rows/1.parquet"))
    assert b"".join(chunks) == file.read_bytes()
    assert max(map(len, chunks)) < 4_000_000
    store.remove("rows/1.parquet")
    assert store.names() == {"manifest/00000001.json": 2}
    with pytest.raises(ArchiveDamaged, match="no such object"):
        store.read("rows/1.parquet")


def test_credentials_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as bucket:
        url, options = _of(bucket.settings)
        for name, value in options.items():
            monkeypatch.setenv({"endpoint": "AWS_ENDPOINT_URL"}.get(name, f"AWS_{name.upper()}"), value)
        store = ObjectStore(url, {}, "orders")
        store.create("a", b"b")
        assert store.read("a") == b"b"
        assert list(bucket.objects) == ["outbox/orders/a"]


def test_a_bucket_that_is_not_available(tmp_path: Path) -> None:
    with serve() as bucket:
        url, options = _of(bucket.settings)
    options["endpoint"] = options["endpoint"].replace("//", "//user:hush@")
    with pytest.raises(ArchiveUnavailable, match="not available") as caught:
        ObjectStore(url, options).names()
    assert "hush" not in str(caught.value)


def test_a_large_file_has_a_longer_timeout() -> None:
    """Unless the settings say otherwise; the client's default would fail at the same file on a slow line."""
    with serve() as bucket:
        url, options = _of(bucket.settings)
    for given, bound in (({}, OBJECT_TIMEOUT), ({"timeout": "7s"}, "7s")):
        assert ObjectStore(url, {**options, **given})._store.client_options["timeout"] == bound


def test_urls_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bogus"):
        ObjectStore("s3://cold", {"bogus": "x", "region": "eu-central-1"})
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="does not exist"):
        ObjectStore(f"file://{tmp_path}/file", {})


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    """Neither when it is opened, nor when its disk disappears between two files."""
    folder = tmp_path / "cold"
    with pytest.raises(ConfigError, match="does not exist") as caught:
        ObjectStore(f"file://{folder}", {}, "orders")
    assert f"mkdir -p {folder}" in caught.value.remedy
    assert not folder.exists()
    folder.mkdir()
    store = ObjectStore(f"file://{folder}", {}, "orders")
    assert store.names() == {}
    assert not list(folder.iterdir())
    folder.rename(tmp_path / "away")
    with pytest.raises(ConfigError, match="does not exist"):
        store.create("a", b"")
    assert not folder.exists()


def test_every_new_folder_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is lost if the entry of its folder was never synced."""
    settled: set[str] = set()
    fsync = os.fsync

    def noted(handle: int) -> None:
        settled.add(str(Path(f"/proc/self/fd/{handle}").readlink()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    ObjectStore(f"file://{tmp_path}", {}, "orders").create("rows/1.parquet", b"")
    below = tmp_path / "orders" / "rows" / "1.parquet"
    assert settled == {str(below), str(below.parent), str(below.parent.parent), str(tmp_path)}


def test_a_folder_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    store = ObjectStore(f"file://{tmp_path}", {}, "orders")
    before = os.umask(0o022)
    try:
        store.create("rows/1.parquet", b"rows")
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert (tmp_path / "orders/rows/1.parquet").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "orders/rows").stat().st_mode & 0o777 == 0o700


def test_symbolic_links_are_not_part_of_an_archive(tmp_path: Path) -> None:
    (tmp_path / "cold").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/private").write_text("not the archive's")
    store = ObjectStore(f"file://{tmp_path}/cold", {}, "orders")
    store.create("rows/1.parquet", b"rows")
    (tmp_path / "cold/orders/rows/linked").symlink_to(tmp_path / "elsewhere/private")
    (tmp_path / "cold/orders/more").symlink_to(tmp_path / "elsewhere")
    assert store.names() == {"rows/1.parquet": 4}
