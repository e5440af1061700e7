"""Keeps one pipeline in the state that a user asked for: starts, watches, stops and restarts its process."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

from tailrace.errors import PipelineCrashed, PipelineStalled, TailraceError
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.process import EXIT_BUG, ProcessSpec
from tailrace.manager.report import FAILED, RESTARTING, RUNNING, STARTING, STOPPED, ErrorReport, PipelineReport
from tailrace.manager.restarts import RestartPolicy, may_recover
from tailrace.manager.spawn import PipelineProcess, WarmProcess
from tailrace.worker.logs import StructuredLogger

SILENT_SECONDS = 30.0
"""A process that sends no report for this long is stuck, and is killed."""
RECHECK_SECONDS = 1.0
STOP_SECONDS = 4.4
"""From SIGTERM to SIGKILL. The process ends by itself before."""
NEVER = 1e9


class PipelineRunner:
    """Runs in the worker's event loop. Everything that changes `pipeline` calls `wake` afterwards."""

    def __init__(
        self,
        pipeline: ManagedPipeline,
        warm: WarmProcess,
        policy: RestartPolicy,
        make_spec: Callable[[ManagedPipeline], ProcessSpec],
        *,
        on_end: Callable[[int], None] = lambda _: None,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        """`on_end` gets the exit code of a process that ended without being asked to."""
        self.pipeline = pipeline
        self.is_ready = False
        """Whether the stored target state is known."""
        self._warm = warm
        self._policy = policy
        self._make_spec = make_spec
        self._on_end = on_end
        self._silent_seconds = silent_seconds
        self._log = StructuredLogger("tailrace.worker", pipeline=pipeline.name)
        self._wake = asyncio.Event()
        self._again = False
        self._closing = False
        self._process: PipelineProcess | None = None
        self._task = asyncio.create_task(self._run())

    @property
    def process(self) -> PipelineProcess | None:
        """The running process."""
        return self._process

    def wake(self) -> None:
        """Makes the runner compare target and settings with what runs."""
        self._wake.set()

    def restart(self) -> None:
        """Ends the process, if there is one, and starts a new one; restarts are counted from zero."""
        self._again = True
        self.pipeline.restarts = 0
        if self.pipeline.target == RUNNING and self.pipeline.settings is not None:
            self.pipeline.state = RESTARTING
        self._wake.set()

    async def close(self) -> None:
        """Ends the process and the runner."""
        self._closing = True
        self._wake.set()
        await self._task

    async def _run(self) -> None:
        while not self._closing:
            self._again = False
            pipeline = self.pipeline
            if pipeline.settings is None:
                pipeline.state = FAILED
            elif pipeline.target != RUNNING:
                pipeline.state, pipeline.error, pipeline.restart_at = pipeline.target, None, None
            elif self.is_ready:
                await self._run_process()
                continue
            await self._changed()
        self.pipeline.state = STOPPED

    async def _changed(self, seconds: float = NEVER) -> bool:
        """Waits until something was changed; returns False after that many seconds."""
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    @property
    def _is_wanted(self) -> bool:
        """Whether the process that runs now should go on."""
        return not (self._closing or self._again or self.pipeline.target != RUNNING)

    async def _run_process(self) -> None:
        """Runs one process until it ends. If nobody asked for that, waits until it should be restarted."""
        pipeline, loop = self.pipeline, asyncio.get_running_loop()
        pipeline.state, pipeline.error, pipeline.restart_at = STARTING, None, None
        process = PipelineProcess(self._warm, self._make_spec(pipeline), self._take_report)
        began = loop.time()
        try:
            await process.start()
        except (OSError, EOFError, RuntimeError) as mistake:
            await self._fail(_unstartable(mistake), 0.0)
            return
        self._process, pipeline.pid = process, process.pid
        self._log.info("process started", pid=process.pid)
        try:
            error = await self._watch(process)
        finally:
            self._process, pipeline.pid = None, None
        # It may be wanted again: a resume during the stop, or a restart that was asked for after it.
        if process.asked_to_end or not self._is_wanted:
            self._log.info("process stopped", pid=process.pid)
            return
        code = process.exit_code or 0
        report = pipeline.report if pipeline.report is not None and pipeline.report.pid == process.pid else None
        if error is None and report is not None and report.state == FAILED and code > 0:
            error = report.error  # it is logged by the process
        elif error is None:
            crash = _crashed(code)
            error = ErrorReport.of(crash, may_recover=may_recover(crash.code))
            self._log.error("crashed", error=crash.code, what=crash.what, why=crash.why, remedy=crash.remedy)
        self._on_end(code if code > 0 else EXIT_BUG)
        await self._fail(error, loop.time() - began)

    async def _watch(self, process: PipelineProcess) -> ErrorReport | None:
        """Waits for the end of a process, and ends it if it is not wanted any more. Returns an error if it is stuck."""
        loop = asyncio.get_running_loop()
        ended = asyncio.create_task(process.ended.wait())
        try:
            while not process.ended.is_set():
                if not self._is_wanted:
                    await process.stop(STOP_SECONDS)
                    return None
                if self._is_silent(process):
                    # The worker itself may have been suspended: then the reports are there, but not read yet.
                    await asyncio.wait([ended], timeout=RECHECK_SECONDS)
                    if self._is_silent(process) and not process.ended.is_set():
                        return await self._kill_stuck(process)
                    continue
                wake = asyncio.create_task(self._wake.wait())
                await asyncio.wait(
                    [ended, wake],
                    timeout=max(0.0, process.heard_at + self._silent_seconds - loop.time()) + 0.01,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                wake.cancel()
                self._wake.clear()
        finally:
            ended.cancel()
        return None

    def _is_silent(self, process: PipelineProcess) -> bool:
        return asyncio.get_running_loop().time() - process.heard_at > self._silent_seconds

    async def _kill_stuck(self, process: PipelineProcess) -> ErrorReport:
        seconds = asyncio.get_running_loop().time() - process.heard_at
        error = PipelineStalled(
            f"the pipeline process sent no report for {seconds:.0f} s",
            why="It is suspended, or a thread of it holds Python's global lock.",
            remedy="The worker has killed it and restarts it. No event is lost: it resumes at the stored position.",
        )
        self._log.error("stuck", pid=process.pid, error=error.code, what=error.what, why=error.why)
        await process.kill()
        return ErrorReport.of(error, may_recover=may_recover(error.code))

    async def _fail(self, error: ErrorReport | None, ran_seconds: float) -> None:
        """Waits until the pipeline should be started again."""
        pipeline, policy = self.pipeline, self._policy
        pipeline.state, pipeline.error = FAILED, error
        pipeline.restarts = policy.counted(pipeline.restarts, ran_seconds)
        delay = NEVER
        if policy.enabled and error is not None and error.may_recover:
            delay = policy.delay(pipeline.restarts)
            pipeline.restart_at = time.time() + delay
            self._log.warning("restart", error=error.code, seconds=round(delay, 1), restarts=pipeline.restarts)
        deadline = asyncio.get_running_loop().time() + delay
        while self._is_wanted:
            if not await self._changed(max(0.0, deadline - asyncio.get_running_loop().time())):
                pipeline.restarts += 1
                pipeline.restarts_total += 1
                pipeline.state = RESTARTING
                break
        pipeline.restart_at = None

    def _take_report(self, report: PipelineReport) -> None:
        pipeline = self.pipeline
        pipeline.report = report
        if report.state != STOPPED and self._is_wanted:
            pipeline.state, pipeline.error = report.state, report.error

    def kill_at_once(self) -> None:
        """Kills the process without waiting: the worker must end now."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)


def _unstartable(error: Exception) -> ErrorReport:
    crash: TailraceError = PipelineCrashed(
        f"the pipeline process could not be started: {error!r}",
        why="The system gives no more processes or memory, or the warm process has ended.",
        remedy="Raise the limits (ulimit, the container's memory). The worker tries again by itself.",
    )
    return ErrorReport.of(crash, may_recover=True)


def _crashed(code: int) -> PipelineCrashed:
    how = f"was ended by the signal {_signal_name(-code)}" if code < 0 else f"ended with code {code}"
    return PipelineCrashed(
        f"the pipeline process {how}",
        why="Somebody or the kernel killed it (out of memory?), or it crashed."
        if code < 0
        else "Nobody asked it to end.",
        remedy="The worker restarts it. No event is lost: it resumes at the stored position.",
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
