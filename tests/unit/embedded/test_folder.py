"""Folders of an embedded outbox that are in use, damaged, full, or not ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.rocks import opened
from helpers.small_disk import SmallDisk, mounted
from tailrace.embedded import EmbeddedOutbox, database, strict
from tailrace.errors import StoreFailed, StoreInUse
from tailrace.testkit.stack import wait_until

HOLDING = """
import sys
from tailrace.embedded import EmbeddedOutbox
outbox = EmbeddedOutbox(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_another_process_has_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDING, str(tmp_path / "outbox")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(StoreInUse, match="is in use") as caught:
            EmbeddedOutbox(tmp_path / "outbox")
        assert "drain it in the process of the service" in caught.value.remedy
    finally:
        process.communicate("", timeout=30)


def test_this_process_has_it(tmp_path: Path) -> None:
    with EmbeddedOutbox(tmp_path / "outbox") as outbox:
        with pytest.raises(StoreInUse):
            EmbeddedOutbox(tmp_path / "outbox")
        outbox.write("a", b"still works")


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    import asyncio

    async def projection() -> None:
        async with opened(tmp_path / "projection"):
            pass

    asyncio.run(projection())
    (tmp_path / "file").write_text("x")
    for name in ("projection", "file"):
        with pytest.raises(StoreFailed, match="cannot be opened as an embedded outbox"):
            EmbeddedOutbox(tmp_path / name)


@pytest.mark.parametrize("damage", ["MANIFEST-*", "*.sst", "no *.sst"])
def test_a_damaged_folder(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "outbox"
    with EmbeddedOutbox(path) as outbox:
        for number in range(300):
            outbox.write(str(number), os.urandom(100))
    EmbeddedOutbox(path).close()  # replays the log into sorted files
    for file in path.glob(damage.removeprefix("no ")):
        if damage.startswith("no "):
            file.unlink()
            continue
        data = bytearray(file.read_bytes())
        data[: len(data) // 2] = b"\xff" * (len(data) // 2)
        file.write_bytes(data)
    with pytest.raises(StoreFailed) as caught, EmbeddedOutbox(path) as outbox:
        outbox.read(1000)
    assert "what was captured and not drained is lost" in caught.value.remedy


def test_a_full_disk_rejects_and_the_outbox_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was accepted is there, and nothing else."""
    monkeypatch.setattr(database, "REOPEN_SECONDS", 0.0)
    accepted, rejected, reasons = set[str](), set[str](), set[str]()
    with mounted(tmp_path, 8) as folder:
        disk = SmallDisk(folder)
        outbox = EmbeddedOutbox(folder / "outbox")

        def accept(key: str) -> bool:
            try:
                with strict(outbox, key, os.urandom(5000)):
                    accepted.add(key)
            except StoreFailed as error:
                reasons.add(error.why.partition(":")[0])
                rejected.add(key)
                return False
            return True

        assert all(accept(f"before-{number}") for number in range(20))
        disk.fill()
        numbers = iter(range(10_000))
        wait_until(lambda: not accept(f"full-{next(numbers)}"), 20)
        assert not any(accept(f"after-{number}") for number in range(3))
        assert outbox.write_errors == 4
        disk.empty()
        wait_until(lambda: accept(f"room-{next(numbers)}"), 20)
        for _ in range(2):
            found = outbox.read(10_000)
            assert {entry.text_key for entry in found} == accepted
            assert len(found) == outbox.count
            outbox.close()
            outbox = EmbeddedOutbox(folder / "outbox")
        outbox.close()
    assert rejected
    assert reasons == {"IO error"}
    assert not rejected & accepted
