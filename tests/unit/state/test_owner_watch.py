"""Reads the owner of a pipeline from its records, and detects processes that have ended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tailrace.state.owner_watch import Owner, heartbeat_value, is_released, ownership_value, parse_owner
from tailrace.state.process_identity import has_ended, this_process
from tailrace.testkit.stack import wait_until

OWNER = Owner("a", "host", 7, 1_700_000_000_000, "boot/1 7 99")


def test_an_owner_is_read_as_it_was_written() -> None:
    assert parse_owner(ownership_value(OWNER)) == OWNER
    assert "process 7 on host, since 2023-" in str(OWNER)


@pytest.mark.parametrize("value", [None, b"", b"-"])
def test_records_without_an_owner(value: bytes | None) -> None:
    assert parse_owner(value) is None


@pytest.mark.parametrize("value", [b"6f0c", b"\xff", b"[]", b'{"instance": "a"}', b"7"])
def test_an_unknown_format_still_means_an_owner(value: bytes) -> None:
    owner = parse_owner(value)
    assert owner is not None
    assert not owner.process, "nothing is known of its process"
    assert not has_ended(owner.process)


def test_only_the_owner_can_release_the_pipeline() -> None:
    assert is_released(OWNER, heartbeat_value("a", released=True))
    for sign in (None, b"", b"{", b"[]", heartbeat_value("a"), heartbeat_value("b", released=True)):
        assert not is_released(OWNER, sign)


def test_a_running_suspended_or_ended_process() -> None:
    identity = (
        "import sys; from tailrace.state.process_identity import this_process as p\n"
        "print(p(), flush=True); sys.stdin.read()"
    )
    assert not has_ended(this_process())
    with subprocess.Popen([sys.executable, "-c", identity], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        identity = process.stdout.readline().strip()
        assert identity.split()[1] == str(process.pid)
        assert not has_ended(identity)
        process.kill()
        wait_until(lambda: has_ended(identity), 30, what="its end, before it is reaped")
    assert has_ended(identity), "after it was reaped"


def test_a_reused_pid_or_one_of_another_machine() -> None:
    kernel, pid, started = this_process().split()
    assert int(pid) == os.getpid()
    assert has_ended(f"{kernel} {pid} {int(started) - 1}"), "another process had this pid before"
    assert not has_ended(f"elsewhere/1 {pid} {int(started) - 1}")
    for nonsense in ("", "x", f"{kernel} -1 5", f"{kernel} x y"):
        assert not has_ended(nonsense)
