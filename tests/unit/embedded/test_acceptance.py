"""Strict acceptance: rejections, replaced entries, cancelled tasks, and processes that die around every write."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers.store_scenarios import in_loop
from tailrace import failpoints
from tailrace.embedded import EmbeddedOutbox, strict
from tailrace.testkit.stack import wait_until

PROCESS = """
import json, sys
from tailrace import failpoints
from tailrace.embedded import EmbeddedOutbox, strict
from tailrace.testkit.stack import wait_until

class Refused(Exception): pass

outbox = EmbeddedOutbox(sys.argv[1])
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    try:
        with strict(outbox, str(number), b"raw"):
            if number % 3 == 2:
                raise Refused
            print(json.dumps(["accepted", number]), flush=True)
        print(json.dumps(["done", number]), flush=True)
    except Refused:
        print(json.dumps(["rejected", number]), flush=True)
"""
"""Every third is refused. `accepted` is what the service knows."""


class Refused(Exception):
    pass


def start(path: Path, first: int, end: int, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(path), str(first), str(end)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )


def stored(path: Path) -> set[int]:
    with EmbeddedOutbox(path) as outbox:
        found = outbox.read(100_000)
        assert outbox.count == len(found)
        return {int(entry.key) for entry in found}


@pytest.fixture
def outbox(tmp_path: Path) -> EmbeddedOutbox:
    return EmbeddedOutbox(tmp_path / "outbox")


def held(outbox: EmbeddedOutbox) -> dict[str, bytes]:
    return {entry.text_key: entry.raw for entry in outbox.read(1000)}


def test_the_entry_is_written_before_the_acceptance_and_drained_after_it(outbox: EmbeddedOutbox) -> None:
    with strict(outbox, "a", b"1"):
        assert (outbox.count, held(outbox), outbox.read(ordered=True)) == (1, {}, [])
    assert held(outbox) == {"a": b"1"}


def test_a_rejection_deletes_the_entry_and_no_earlier_one(outbox: EmbeddedOutbox) -> None:
    """A service that refuses a transaction because it has it already must not lose it."""
    with strict(outbox, "a", b"first"):
        pass
    for key in ("a", "b"):
        with pytest.raises(Refused), strict(outbox, key, b"again"):
            raise Refused
    assert (held(outbox), outbox.count) == ({"a": b"first"}, 1)


def test_of_two_at_once_the_rejected_one_does_not_take_the_other_along(outbox: EmbeddedOutbox) -> None:
    first, second = strict(outbox, "a", b"first"), strict(outbox, "a", b"second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert held(outbox) == {"a": b"first"}
    second.__exit__(Refused, Refused(), None)
    assert (held(outbox), outbox.count) == ({"a": b"first"}, 1)


def test_a_second_acceptance_replaces_the_first(outbox: EmbeddedOutbox) -> None:
    for raw in (b"first", b"second"):
        with strict(outbox, "a", raw):
            pass
    assert (held(outbox), outbox.count) == ({"a": b"second"}, 1)


def test_a_write_during_an_acceptance_is_not_lost_and_not_kept_twice(outbox: EmbeddedOutbox) -> None:
    with strict(outbox, "a", b"accepted"):
        outbox.write("a", b"written")
    assert (held(outbox), outbox.count) == ({"a": b"written"}, 1)


def test_what_is_not_new_is_not_captured(outbox: EmbeddedOutbox) -> None:
    with strict(outbox, "a", b"1", is_new=False):
        pass
    with pytest.raises(Refused), strict(outbox, "a", b"1", is_new=False):
        raise Refused
    assert outbox.last_sequence == 0


def test_without_a_write_nothing_is_accepted_unless_it_is_not_strict(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    accepted = []
    for is_strict in (True, False):
        outbox = EmbeddedOutbox(tmp_path / "outbox", strict=is_strict)
        outbox.close()
        try:
            with strict(outbox, "a", b"1"):
                accepted.append(is_strict)
        except RuntimeError:
            assert is_strict
        assert outbox.write_errors == 1
    assert accepted == [False]
    assert "not captured" in caplog.text


@in_loop
async def test_tasks(tmp_path: Path) -> None:
    with EmbeddedOutbox(tmp_path / "outbox") as outbox:

        async def accept(number: int) -> None:
            async with strict(outbox, str(number), b"x"):
                await asyncio.sleep(0)
                if number % 3 == 2:
                    raise Refused

        ended = await asyncio.gather(*(accept(number) for number in range(60)), return_exceptions=True)
        assert [isinstance(each, Refused) for each in ended] == [number % 3 == 2 for number in range(60)]
        assert held(outbox).keys() == {str(number) for number in range(60) if number % 3 != 2}
        assert outbox.in_flight == 0


@in_loop
async def test_a_task_that_is_cancelled_at_any_moment_leaves_nothing_in_flight(tmp_path: Path) -> None:
    done: set[str] = set()
    with EmbeddedOutbox(tmp_path / "outbox") as outbox:

        async def accept(key: str) -> None:
            async with strict(outbox, key, b"x"):
                await asyncio.sleep(0.001)
            done.add(key)

        for number in range(60):
            task = asyncio.create_task(accept(str(number)))
            await asyncio.sleep(random.uniform(0, 0.004))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        # The threads of cancelled tasks end on their own.
        await asyncio.get_running_loop().shutdown_default_executor()
        assert held(outbox).keys() == done
        assert (outbox.in_flight, outbox.count) == (0, len(done))


@in_loop
async def test_a_task_that_is_cancelled_while_its_rejection_waits_for_a_thread(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    free = threading.Event()
    with EmbeddedOutbox(tmp_path / "outbox") as outbox:
        refusing = asyncio.Event()

        async def accept() -> None:
            async with strict(outbox, "a", b"x"):
                loop.run_in_executor(None, free.wait)
                refusing.set()
                raise Refused

        task = asyncio.create_task(accept())
        await refusing.wait()  # now it waits for the only thread
        task.cancel()
        try:
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            free.set()
        await loop.shutdown_default_executor()
        assert (outbox.in_flight, outbox.count) == (0, 0)


KILLED = {
    failpoints.OUTBOX_WRITTEN: {0, 1, 3, 4},  # written, and not accepted: captured all the same
    failpoints.OUTBOX_ACCEPTED: {0, 1, 3, 4},
    failpoints.OUTBOX_REJECTING: {0, 1, 2},  # the death comes before the deletion
    failpoints.OUTBOX_REJECTED: {0, 1},
}
NTH = {failpoints.OUTBOX_WRITTEN: 5, failpoints.OUTBOX_ACCEPTED: 4}


@pytest.mark.parametrize("point", failpoints.ACCEPTING)
def test_killed_at(tmp_path: Path, point: str) -> None:
    nth = NTH.get(point, 1)
    process = start(tmp_path / "outbox", 0, 100, TAILRACE_KILL=f"{point}:{nth}")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    accepted = {number for what, number in map(json.loads, said.splitlines()) if what == "accepted"}
    rejected = {number for what, number in map(json.loads, said.splitlines()) if what == "rejected"}
    captured = stored(tmp_path / "outbox")
    assert captured == KILLED[point]
    assert accepted <= captured
    assert not rejected & captured


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """What was accepted is captured, what was reported as rejected is not."""
    first, log = 0, tmp_path / "log"
    for lines in (1, 25, 60):
        with log.open("ab") as said:
            said.write(b"\n")  # the last process may have died within a line
            said.flush()
            process = subprocess.Popen(
                [sys.executable, "-c", PROCESS, str(tmp_path / "outbox"), str(first), "1000000"], stdout=said
            )
        known = log.read_bytes().count(b"\n")
        try:
            wait_until(lambda: log.read_bytes().count(b"\n") >= known + lines, 60)  # noqa: B023 - waits here
        finally:
            process.kill()
            process.wait()
        found = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("]\n")]
        accepted = {number for what, number in found if what == "accepted"}
        rejected = {number for what, number in found if what == "rejected"}
        captured = stored(tmp_path / "outbox")
        assert accepted <= captured
        assert not rejected & captured
        assert len(captured - accepted) <= 3, "at most the one of each death"
        first = max(captured | rejected) + 1
