"""Jobs: commands in processes, with progress, results, errors and bounds. The commands are fakes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from helpers import fake_commands
from tailrace.api.v1 import jobs as jobs_module
from tailrace.api.v1 import outcome, process
from tailrace.api.v1.jobs import FAILED, RUNNING, STOPPED, SUCCEEDED, Job, Jobs
from tailrace.cli.operations import operation
from tailrace.errors import JobUnknown, WorkerBusy
from tailrace.manager.spawn import WarmProcess

FILE = Path("/pipelines/orders.yaml")


def with_jobs(test: Callable[[Jobs, list[str]], Awaitable[None]]) -> None:
    """Runs a test with jobs; its second argument collects the states that were notified."""

    async def run() -> None:
        states: list[str] = []
        jobs = Jobs(WarmProcess(), fake_commands.run, lambda job: states.append(job.state))
        try:
            async with asyncio.timeout(90):
                await test(jobs, states)
        finally:
            await jobs.close()
        assert not jobs._folder.exists()

    asyncio.run(run())


def submit(
    jobs: Jobs, name: str, values: dict[str, Any] | None = None, contents: dict[str, bytes] | None = None
) -> Job:
    return jobs.submit(operation(name), "orders", [FILE], values or {}, contents or {})


async def ended(job: Job) -> dict[str, Any]:
    await job.ended.wait()
    return job.to_json()


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_a_command_runs_in_its_own_session_and_empty_folder() -> None:
    async def test(jobs: Jobs, states: list[str]) -> None:
        found = await ended(submit(jobs, "status"))
        assert found["result"] == {
            "words": ["status", "--json", "--", str(FILE)],
            "folder": [],
            "input": "",
            "session": True,
        }
        assert (found["state"], found["exit_code"], found["error"]) == (SUCCEEDED, 0, None)
        assert states == ["QUEUED", RUNNING, SUCCEEDED]

    with_jobs(test)


def test_a_failed_check_is_a_result() -> None:
    async def test(jobs: Jobs, _: list[str]) -> None:
        found = await ended(submit(jobs, "check"))
        assert (found["state"], found["exit_code"], found["result"]) == (SUCCEEDED, 1, {"ok": False})

    with_jobs(test)


def test_an_error_of_the_command_is_the_error_of_the_job() -> None:
    async def test(jobs: Jobs, _: list[str]) -> None:
        found = await ended(submit(jobs, "position show"))
        assert (found["state"], found["exit_code"], found["result"]) == (FAILED, 2, None)
        error = found["error"]
        assert (error.code, error.what, error.why, error.remedy) == ("ConfigError", "it is wrong", "because", "Fix it.")

    with_jobs(test)


def test_lines_become_a_list() -> None:
    async def test(jobs: Jobs, _: list[str]) -> None:
        found = await ended(submit(jobs, "dlq redrive"))
        assert found["result"] == [{"number": 0}, {"number": 1}, {"number": 2}]
        assert found["progress"]["lines"] == 3

    with_jobs(test)


def test_progress_is_shown_and_a_job_can_be_stopped() -> None:
    async def test(jobs: Jobs, states: list[str]) -> None:
        job = submit(jobs, "verify")
        await until(lambda: job.output.progress.share == 0.5)
        assert job.summary()["progress"] == {"share": 0.5, "text": "half", "lines": 0}
        pid = job.pid
        assert pid
        found = (await jobs.stop(job.id)).to_json()
        assert found["state"] == STOPPED
        assert found["error"].code == "Stopped"
        assert not psutil.pid_exists(pid)
        assert states[-1] == STOPPED
        # Again: nothing changes.
        assert (await jobs.stop(job.id)).state == STOPPED

    with_jobs(test)


def test_a_command_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)

    async def test(jobs: Jobs, _: list[str]) -> None:
        job = submit(jobs, "recover apply")
        await until(lambda: job.output.progress.share == 0.1)
        found = (await jobs.stop(job.id)).to_json()
        assert (found["state"], found["exit_code"]) == (STOPPED, -signal.SIGKILL)

    with_jobs(test)


def test_a_killed_process_is_a_failed_job_with_a_reason() -> None:
    async def test(jobs: Jobs, _: list[str]) -> None:
        job = submit(jobs, "verify")
        await until(lambda: job.output.progress.share == 0.5)
        assert job.pid
        os.kill(job.pid, signal.SIGKILL)
        found = await ended(job)
        assert (found["state"], found["exit_code"]) == (FAILED, -signal.SIGKILL)
        assert found["error"].code == "Killed"
        assert "SIGKILL" in found["error"].what
        assert "Start it again" in found["error"].remedy

    with_jobs(test)


def test_a_result_that_is_too_large_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "MAX_RESULT_BYTES", 1_000_000)

    async def test(jobs: Jobs, _: list[str]) -> None:
        job = submit(jobs, "topics plan")
        found = await ended(job)
        assert (found["state"], found["error"].code) == (FAILED, "ResultTooLarge")

    with_jobs(test)


def test_output_that_is_not_json_is_a_bug() -> None:
    async def test(jobs: Jobs, _: list[str]) -> None:
        found = await ended(submit(jobs, "route explain"))
        assert (found["state"], found["error"].code) == (FAILED, "WorkerError")

    with_jobs(test)


def test_a_short_operation_does_not_run_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "SHORT_SECONDS", 0.3)

    async def test(jobs: Jobs, _: list[str]) -> None:
        found = await ended(submit(jobs, "trace", {"event_id": "1"}))
        assert (found["state"], found["error"].code) == (FAILED, "Unavailable")

    with_jobs(test)


def test_contents_are_files_of_the_command() -> None:
    async def test(jobs: Jobs, _: list[str]) -> None:
        found = await ended(submit(jobs, "replay apply", {}, {"plan": b'{"id": 1.10}'}))
        assert found["result"] == {"plan": {"id": 1.1}}
        assert jobs.get(found["id"]).words[-1] == "plan.json"

    with_jobs(test)


def test_the_number_of_waiting_jobs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MOST_WAITING", 6)

    async def test(jobs: Jobs, _: list[str]) -> None:
        waiting = [submit(jobs, "verify") for _ in range(6)]
        with pytest.raises(WorkerBusy):
            submit(jobs, "verify")
        await until(lambda: sum(job.state == RUNNING for job in waiting) == jobs_module.LONG_AT_ONCE)
        # Others still run: long operations do not take the places of short ones.
        monkeypatch.setattr(jobs_module, "MOST_WAITING", 100)
        assert (await ended(submit(jobs, "status")))["state"] == SUCCEEDED
        queued = next(job for job in waiting if job.state == "QUEUED")
        assert (await jobs.stop(queued.id)).state == STOPPED
        assert queued.pid is None

    with_jobs(test)


def test_only_the_last_jobs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "MOST_KEPT", 2)

    async def test(jobs: Jobs, _: list[str]) -> None:
        done = [submit(jobs, "status") for _ in range(4)]
        for job in done:
            await job.ended.wait()
        assert len(jobs.all()) == 2
        with pytest.raises(JobUnknown):
            jobs.get("none")

    with_jobs(test)


def test_closing_ends_running_commands() -> None:
    pids: list[int] = []

    async def test(jobs: Jobs, _: list[str]) -> None:
        job = submit(jobs, "verify")
        await until(lambda: job.output.progress.share == 0.5)
        pids.append(job.pid or 0)
        await jobs.close()
        assert job.state == STOPPED
        with pytest.raises(WorkerBusy):
            submit(jobs, "status")

    with_jobs(test)
    assert not psutil.pid_exists(pids[0])
