"""The jobs of a worker: commands that run in processes, with their progress and results.

The numbers of running and waiting jobs and the size of kept results are bounded. Jobs are lost when the worker ends:
every operation can be repeated or continues where it was.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tailrace.api.v1.operation import Operation, Value
from tailrace.api.v1.outcome import Outcome, OutputCollector, outcome_of
from tailrace.api.v1.process import DRAIN_SECONDS, CommandProcess, Run
from tailrace.errors import JobUnknown, TailraceError, WorkerBusy
from tailrace.manager.report import ErrorReport
from tailrace.manager.spawn import WarmProcess

QUEUED, RUNNING, SUCCEEDED, FAILED, STOPPED = "QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"
SHORT_AT_ONCE, LONG_AT_ONCE = 6, 4
MOST_WAITING = 100
MOST_KEPT = 200
KEPT_BYTES = 16_000_000
"""Of the texts of results; they need about five times as much memory."""
SHORT_SECONDS = 120.0
"""A short operation is stopped after this time."""

CLOSE_SECONDS = 3.0

logger = logging.getLogger(__name__)


class Job:
    """One call of an operation."""

    def __init__(self, operation: Operation, pipeline: str, words: list[str], folder: Path) -> None:
        self.id = secrets.token_hex(8)
        self.operation = operation
        self.pipeline = pipeline
        self.words = words
        self.folder = folder
        self.state = QUEUED
        self.created_ms = now_ms()
        self.started_ms: int | None = None
        self.ended_ms: int | None = None
        self.output = OutputCollector()
        self.outcome: Outcome | None = None
        self.process: CommandProcess | None = None
        self.stopping = False
        self.ended = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process and self.state == RUNNING else None

    def summary(self) -> dict[str, Any]:
        """Returns everything but the result."""
        progress, outcome = self.output.progress, self.outcome
        return {
            "id": self.id,
            "operation": self.operation.name,
            "pipeline": self.pipeline,
            "state": self.state,
            "created_ms": self.created_ms,
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
            "pid": self.pid,
            "progress": {"share": progress.share, "text": progress.text, "lines": self.output.lines},
            "exit_code": outcome.exit_code if outcome else None,
            "error": outcome.error if outcome else None,
        }

    def to_json(self) -> dict[str, Any]:
        return {**self.summary(), "result": self.outcome.result if self.outcome else None}


class Jobs:
    """Starts jobs, and keeps those that ended for a while."""

    def __init__(self, warm: WarmProcess, run: Run, notify: Callable[[Job], None] = lambda _: None) -> None:
        """`run` runs a command line; `notify` is called whenever a job changes."""
        self.warm = warm
        self.run = run
        self._notify = notify
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = {True: asyncio.Semaphore(LONG_AT_ONCE), False: asyncio.Semaphore(SHORT_AT_ONCE)}
        self._folder = Path(tempfile.mkdtemp(prefix="tailrace-jobs-"))
        self._closed = False

    def all(self) -> list[Job]:
        """Returns the jobs, newest first."""
        return sorted(self._jobs.values(), key=lambda job: job.created_ms, reverse=True)

    def get(self, job_id: str) -> Job:
        found = self._jobs.get(job_id)
        if found is None:
            raise JobUnknown(
                f"there is no job {job_id}",
                why=f"A worker keeps its last {MOST_KEPT} jobs, and none after a restart.",
                remedy="Start the operation again: nothing is published twice. See /api/v1/jobs.",
            )
        return found

    def submit(
        self,
        operation: Operation,
        pipeline: str,
        pipelines: Sequence[Path],
        values: Mapping[str, Value],
        contents: Mapping[str, bytes],
    ) -> Job:
        """Starts an operation, or queues it if too many are running. `pipelines` are settings files, usually one."""
        self.require_room()
        folder, files = self.new_folder(contents, {})
        words = operation.words([str(file.resolve()) for file in pipelines], values, files, as_json=True, yes=True)
        if operation.writes:
            words.insert(len(operation.name.split()), f"{operation.writes}=.")
        job = Job(operation, pipeline, words, folder)
        self._jobs[job.id] = job
        task = asyncio.create_task(self._run(job), name=f"job {job.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._notify(job)
        return job

    def require_room(self) -> None:
        """Raises WorkerBusy if too many commands are waiting, or the worker is stopping."""
        if self._closed or sum(not job.ended.is_set() for job in self._jobs.values()) >= MOST_WAITING:
            raise WorkerBusy(
                "the worker is stopping" if self._closed else f"{MOST_WAITING} operations are running or waiting",
                why="A worker runs a few at a time, so that its pipelines are not disturbed.",
                remedy="Try again later, or stop jobs: DELETE /api/v1/jobs/{id}.",
            )

    def new_folder(self, contents: Mapping[str, bytes], names: Mapping[str, str]) -> tuple[Path, dict[str, str]]:
        """Creates the working folder of a command, with its files; returns the names of the files by parameter."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        files = {name: names.get(name, f"{name}.json") for name in contents}
        for name, content in contents.items():
            (folder / files[name]).write_bytes(content)
        return folder, files

    def slot(self, operation: Operation) -> asyncio.Semaphore:
        """Returns what bounds the number of commands that run at once."""
        return self._slots[operation.long]

    async def stop(self, job_id: str) -> Job:
        """Stops a job. One that has ended stays as it is."""
        job = self.get(job_id)
        job.stopping = True
        if job.process is not None:
            await job.process.stop()
        elif job.state == QUEUED:
            before = ErrorReport("Stopped", "the job was stopped before it began", remedy="Start it again.")
            self._finish(job, Outcome(None, None, before), STOPPED)
        await job.ended.wait()
        return job

    async def close(self) -> None:
        """Stops all jobs, and deletes their files."""
        self._closed = True
        running = [job for job in self._jobs.values() if not job.ended.is_set()]
        for job in running:
            job.stopping = True
            if job.process is not None:
                job.process.signal(signal.SIGTERM)
        # Those that need longer end by themselves, soon after the worker.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*(job.ended.wait() for job in running))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _run(self, job: Job) -> None:
        try:
            async with self.slot(job.operation):
                if not job.ended.is_set():
                    await self._execute(job)
        except TailraceError as error:
            self._finish(job, Outcome(None, None, ErrorReport.of(error)), FAILED)
        except Exception:
            logger.exception("a job failed unexpectedly")
            self._finish(job, Outcome(None, None, unexpected()), FAILED)
        finally:
            if not job.ended.is_set():
                self._finish(job, Outcome(None, None, unexpected()), FAILED)
            await asyncio.to_thread(shutil.rmtree, job.folder, ignore_errors=True)

    async def _execute(self, job: Job) -> None:
        job.process = process = await CommandProcess.start(self.warm, self.run, job.words, job.folder)
        job.state, job.started_ms = RUNNING, now_ms()
        self._notify(job)
        reading = asyncio.gather(
            job.output.collect(process.stdout, process.stderr, lambda: self._notify(job), process.signal)
        )
        if job.stopping:
            await process.stop()
        try:
            async with asyncio.timeout(None if job.operation.long else SHORT_SECONDS):
                code = await process.wait()
        except TimeoutError:
            job.output.too_slow = True
            code = await process.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await reading
        outcome = outcome_of(job.operation, code, job.output, stopped=job.stopping)
        stopped = job.stopping and outcome.error is not None
        self._finish(job, outcome, STOPPED if stopped else FAILED if outcome.error else SUCCEEDED)

    def _finish(self, job: Job, outcome: Outcome, state: str) -> None:
        if job.ended.is_set():
            return
        job.outcome, job.state, job.ended_ms = outcome, state, now_ms()
        job.output.forget()
        job.ended.set()
        self._forget_old()
        self._notify(job)

    def _forget_old(self) -> None:
        ended = [job for job in self.all() if job.ended.is_set()]
        size = 0
        for number, job in enumerate(ended):
            size += job.outcome.size if job.outcome else 0
            if number >= MOST_KEPT or (size > KEPT_BYTES and number > 0):
                del self._jobs[job.id]


def unexpected() -> ErrorReport:
    return ErrorReport(
        "WorkerError", "the worker could not run the operation", remedy="See the worker's log, and report it as a bug."
    )


def now_ms() -> int:
    return time.time_ns() // 1_000_000
