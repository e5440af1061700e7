"""Worker processes always end, and the first error is the one that is reported."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tailrace.errors import SourceError
from tailrace.verify.workers import WorkerPool


def test_a_worker_that_does_not_end_does_not_block_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = WorkerPool(2)
    stuck, other = (member._process for member in workers._members)

    def hangs(timeout: float) -> int:
        raise subprocess.TimeoutExpired("reader", timeout)

    monkeypatch.setattr(stuck, "wait", hangs)
    with pytest.raises(LookupError, match="what went wrong"), workers:
        raise LookupError("what went wrong")
    assert other.returncode == -9
    monkeypatch.undo()
    assert stuck.wait(30) == -9


def test_a_worker_that_does_not_respond_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with WorkerPool(1) as workers:
        (member,) = workers._members
        member._process.send_signal(signal.SIGSTOP)
        member._link.close()
        monkeypatch.setattr("tailrace.verify.workers.ENDING_SECONDS", 0.01)
        with pytest.raises(SourceError, match="does not respond"):
            member.answer()
        monkeypatch.undo()
