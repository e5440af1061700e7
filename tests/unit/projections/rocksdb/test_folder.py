"""Folders that cannot be used, and processes that die or run out of disk around a commit."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from helpers.rocks import contents, effects_of, opened
from helpers.small_disk import SmallDisk, mounted
from helpers.store_scenarios import in_loop
from tailrace import rocksdb_folder
from tailrace.embedded import EmbeddedOutbox
from tailrace.errors import ConfigError, StoreFailed, StoreInUse
from tailrace.projections import Projection, Versions, projection_app
from tailrace.projections.rocksdb.store import UNDO, RocksStore

PROCESS = """
import asyncio, os, resource, sys
from tailrace import failpoints
from tailrace.projections.core.store import Marker, Partition
from tailrace.projections.rocksdb.store import RocksStore

async def main(path, first, end, limit):
    store = RocksStore(path, families=["a", "b"], keep_blocks=5)
    await store.open("chain")
    print("open", flush=True)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for slot in range(first, end):
        async with store.transaction(Partition("chain", 0)) as transaction:
            await transaction.position()
            await transaction.mark([Marker(f"e-{slot}", None, None, slot)])
            with transaction.effects.block(slot, b""):
                transaction.effects.put("a", b"slot", str(slot).encode())
                transaction.effects.put("b", str(slot).encode(), os.urandom(1000))
            await transaction.advance(slot + 1)
            failpoints.reached(failpoints.PROJECTION_APPLIED)
        print(slot, flush=True)
        failpoints.reached(failpoints.PROJECTION_COMMITTED)
    sys.stdin.read()

asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
"""


def start(path: Path, first: int = 0, end: int = 0, limit: int = 0, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(path), str(first), str(end), str(limit)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )


async def state(path: Path) -> tuple[int, int, int, set[int]]:
    """Returns the next offset, the newest slot by the block and by its key, and the slots of the other family."""
    async with opened(path, keep_blocks=5) as store:
        (offset,) = (await store.positions()).values() or [0]
        async with effects_of(store) as effects:
            tip = effects.tip
        found = contents(path, ["a", "b", UNDO])
        assert len(found[UNDO]) == min(5, len(found["b"]))
    slot = int(found["a"][b"slot"]) if found["a"] else -1
    return offset, tip.slot if tip else -1, slot, {int(key) for key in found["b"]}


def test_another_process_has_the_folder(tmp_path: Path) -> None:
    process = start(tmp_path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(StoreInUse) as caught:
            asyncio.run(state(tmp_path))
        assert f"the RocksDB folder {tmp_path} is in use" in str(caught.value)
        assert caught.value.why == "Another process has opened it: RocksDB allows one."
        assert "Run one worker" in (caught.value.remedy or "")
    finally:
        process.communicate("", timeout=30)
    assert process.returncode == 0
    assert asyncio.run(state(tmp_path)) == (0, -1, -1, set())


@in_loop
async def test_another_thread_has_the_folder(tmp_path: Path) -> None:
    caught: list[Exception] = []

    def second() -> None:
        try:
            asyncio.run(state(tmp_path))
        except StoreInUse as error:
            caught.append(error)

    async with opened(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert caught[0].remedy == "Open all stores of a folder in one thread."  # type: ignore[attr-defined]


def test_a_lock_that_cannot_be_opened_is_not_in_use(tmp_path: Path) -> None:
    (tmp_path / "LOCK").mkdir()
    with pytest.raises(StoreFailed, match="Is a directory"):
        asyncio.run(state(tmp_path))


def test_offsets_are_read_while_a_worker_writes(tmp_path: Path) -> None:
    """For retention: it does not need the worker stopped, and creates nothing."""
    store = RocksStore(tmp_path / "store", families=["a", "b"])
    assert asyncio.run(store.stored_positions("chain")) == {}
    assert list(tmp_path.iterdir()) == []
    process = start(tmp_path / "store", 0, 100_000)
    assert process.stdout is not None
    try:
        for _ in range(20):
            said = [process.stdout.readline() for _ in range(20)]
            (found,) = asyncio.run(store.stored_positions("chain")).values()
            assert found > int(said[-1])
        assert asyncio.run(store.stored_positions("other")) == {}
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate(timeout=60)
    assert asyncio.run(state(tmp_path / "store"))[0] >= found


def test_a_store_whose_last_flush_fails_can_be_opened_again(tmp_path: Path) -> None:
    async def fill_and_close(disk: SmallDisk) -> None:
        async with opened(folder / "store") as store:
            async with effects_of(store) as effects:
                effects.put("a", b"key", os.urandom(100_000))
            disk.fill()

    with mounted(tmp_path, 8) as folder:
        disk = SmallDisk(folder)
        with pytest.raises(StoreFailed, match="No space left"):
            asyncio.run(fill_and_close(disk))
        disk.empty()
        assert contents(folder / "store")["a"].keys() == {b"key"}


@pytest.mark.parametrize("point", ["projection-applied", "projection-committed"])
def test_killed_around_the_commit(tmp_path: Path, point: str) -> None:
    """INV-1: before the commit nothing of the block is stored, after it everything."""
    first = 0
    for _ in range(3):
        process = start(tmp_path, first, first + 20, TAILRACE_KILL=f"{point}:4")
        process.communicate("", timeout=60)
        assert process.returncode == -signal.SIGKILL
        committed = first + (3 if point == "projection-applied" else 4)
        assert asyncio.run(state(tmp_path)) == (committed, committed - 1, committed - 1, set(range(committed)))
        first = committed


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """What was reported as committed is there, and nothing of a block without the rest."""
    first = 0
    for lines in (1, 7, 20):
        process = start(tmp_path, first, first + 100_000)
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(lines + 1)]
        process.kill()
        process.communicate(timeout=60)
        offset, tip, slot, others = asyncio.run(state(tmp_path))
        assert offset > int(said[-1])
        assert (tip, slot, others) == (offset - 1, offset - 1, set(range(offset)))
        first = offset


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit for the size of files makes writes fail as a full disk does."""
    process = start(tmp_path, 0, 1000, 100_000)
    said, errors = process.communicate("", timeout=60)
    assert process.returncode == 1
    assert "StoreFailed: RocksDB cannot read or write" in errors
    committed = int(said.split()[-1]) + 1
    assert 10 < committed < 1000
    offset, tip, slot, others = asyncio.run(state(tmp_path))
    assert offset >= committed
    assert (tip, slot, others) == (offset - 1, offset - 1, set(range(offset)))


@in_loop
async def test_every_commit_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = rocksdb_folder._options()
    counted.enable_statistics()
    monkeypatch.setattr(rocksdb_folder, "_options", lambda: counted)
    async with opened(tmp_path) as store:

        def synced() -> int:
            found = re.search(r"rocksdb.wal.synced COUNT : (\d+)", counted.get_statistics() or "")
            assert found
            return int(found[1])

        before = synced()
        for number in range(5):
            async with effects_of(store) as effects:
                effects.put("a", str(number).encode(), b"")
        assert synced() - before == 5


def filled(path: Path) -> None:
    async def fill() -> None:
        async with opened(path) as store, effects_of(store) as effects:
            for number in range(2000):
                effects.put("a", str(number).encode(), os.urandom(100))

    asyncio.run(fill())
    # Sorted files are written when the log is replayed.
    contents(path)


@pytest.mark.parametrize("damage", ["CURRENT", "MANIFEST-*", "no CURRENT", "no sorted file", "sorted file"])
def test_a_damaged_folder(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "db"
    filled(path)
    assert list(path.glob("*.sst"))
    if damage == "no CURRENT":
        (path / "CURRENT").unlink()
    elif damage.startswith("no "):
        for file in path.glob("*.sst"):
            file.unlink()
    else:
        for file in path.glob("*.sst" if damage == "sorted file" else damage):
            data = bytearray(file.read_bytes())
            data[: len(data) // 2] = b"\xff" * (len(data) // 2)
            file.write_bytes(data)
    with pytest.raises(StoreFailed) as caught:
        contents(path)
    assert "reads its topics from their beginning" in (caught.value.remedy or "")
    if damage == "no CURRENT":
        assert list(path.glob("*.sst")), "RocksDB would delete them"


@in_loop
async def test_a_read_that_fails_stops_the_projection_and_is_not_the_fault_of_an_event(tmp_path: Path) -> None:
    """RocksDB ends an iteration silently at a damaged block."""
    path = tmp_path / "db"
    async with opened(path) as store, effects_of(store) as effects:
        for number in range(2000):
            effects.put("a", str(number).encode(), os.urandom(100))
    contents(path)
    file = max(path.glob("*.sst"), key=lambda each: each.stat().st_size)
    data = bytearray(file.read_bytes())
    middle = slice(len(data) // 2, len(data) // 2 + 4000)
    data[middle] = b"\xff" * 4000
    file.write_bytes(data)
    read = 0
    with pytest.raises(StoreFailed, match="Corruption"):  # noqa: PT012
        async with opened(path) as store, effects_of(store) as effects:
            with pytest.raises(StoreFailed, match="Corruption"):  # noqa: PT012
                for _ in effects.items("a"):
                    read += 1
            effects.put("b", b"k", b"written although a read has failed")
    assert 0 < read < 2000


def test_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    for name in ("values", "families"):
        other = Rdict(str(tmp_path / name), options)
        if name == "values":
            other[b"k"] = b"v"
        else:
            other.create_column_family("theirs", Options(raw_mode=True)).close()
        other.close()
    for name in ("file", "folder", "values", "families"):
        with pytest.raises(StoreFailed, match="another path") as caught:
            contents(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
    assert (tmp_path / "folder" / "notes.txt").read_text() == "mine"
    assert sorted(each.name for each in (tmp_path / "folder").iterdir()) == ["notes.txt"]


def test_an_interrupted_creation_is_completed(tmp_path: Path) -> None:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    Rdict(str(tmp_path / "no families"), options).close()
    (tmp_path / "begun").mkdir()
    for name in ("LOCK", "LOG", "IDENTITY"):
        (tmp_path / "begun" / name).write_text("")
    for name in ("no families", "begun", "new/deeper"):
        assert contents(tmp_path / name) == {"a": {}, "b": {}}


def test_versions_are_refused_with_an_undo_log(tmp_path: Path) -> None:
    """They are not undone, so an event that replaces an undone one would be skipped."""
    app = projection_app("chain")
    with pytest.raises(ConfigError, match="its store can undo blocks"):
        Projection(app, "blocks", store=RocksStore(tmp_path / "a", families=["a"], keep_blocks=5), versions=Versions())
    Projection(app, "blocks", store=RocksStore(tmp_path / "b", families=["a"]), versions=Versions())


def test_offsets_of_something_else_are_not_read(tmp_path: Path) -> None:
    EmbeddedOutbox(tmp_path / "outbox").close()
    (tmp_path / "file").write_text("x")
    for name in ("outbox", "file"):
        with pytest.raises(StoreFailed, match="cannot be opened as a RocksDB store"):
            asyncio.run(RocksStore(tmp_path / name, families=["a"]).stored_positions("chain"))
