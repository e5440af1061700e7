"""The main function of a pipeline process: runs one pipeline, reports to the worker and carries out its commands.

The supervisor runs in a thread. The main thread sends reports, on each change of state and once a second, and waits for
commands and signals. Both directions are lines of JSON on a socket; if the worker is gone, the pipeline stops.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, NoReturn

import orjson

from tailrace.config.load import load_pipeline
from tailrace.config.model import PipelineSettings
from tailrace.config.secrets import mask
from tailrace.errors import ConfigError, PipelineCrashed, TailraceError
from tailrace.manager.report import FAILED, STARTING, STOPPED, ErrorReport, PipelineReport
from tailrace.manager.restarts import may_recover
from tailrace.manager.watchdog import PipelineWatch
from tailrace.positions.base import to_stored
from tailrace.wakeup import Wakeup
from tailrace.worker import logs
from tailrace.worker.memory import reduce_garbage_collection
from tailrace.worker.supervisor import Recover, Supervisor
from tailrace.worker.wiring import wire

REPORT_SECONDS = 1.0
EXIT_SECONDS = 4.0
"""SIGTERM ends the process within this time. Exiting without the last commit is safe: the next start publishes it."""
SEND_SECONDS = 20.0
"""A worker that reads no report for this long counts as gone."""
ALARM_SECONDS = 120
"""If this thread does not run for so long, the kernel ends the process, even if its worker is gone."""
COMMAND_BYTES = 1 << 16
EXIT_BUG = 70
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What a pipeline process gets from the worker."""

    pipeline: str
    file: str
    adopt: bool = False
    follow_target: bool = True
    as_json: bool = True
    levels: dict[str, str] = field(default_factory=dict)


def run_pipeline(channel: socket.socket, spec: ProcessSpec) -> NoReturn:
    """Runs the pipeline until SIGTERM or a permanent error, and ends the process with its exit code."""
    die_with_parent()
    sys.exit(PipelineMain(channel, spec).run())


def recovery_for(settings: PipelineSettings) -> Recover | None:
    """Returns the function that recovers from a lost log, if the settings ask for it."""
    if settings.source.on_log_loss == "halt":
        return None
    from tailrace.recovery.apply import recover

    return recover


def die_with_parent() -> None:
    """Has the kernel stop this process when the warm process ends, which ends with the worker. Linux only."""
    parent = os.getppid()
    set_option = getattr(ctypes.CDLL(None), "prctl", None)
    if set_option is not None:
        set_option(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)
    # The warm process ends when nobody can ask it for processes any more; this one got that right from the worker.
    for holder, name in ((forkserver._forkserver, "_forkserver_alive_fd"), (resource_tracker._resource_tracker, "_fd")):
        inherited = getattr(holder, name, None)
        if isinstance(inherited, int):
            os.close(inherited)
            setattr(holder, name, None)


class PipelineMain:
    """One pipeline process."""

    def __init__(self, channel: socket.socket, spec: ProcessSpec) -> None:
        self._channel: socket.socket | None = channel
        self._spec = spec
        self._seen: tuple[str, TailraceError | None] = STARTING, None
        """State and error, changed together by the supervisor's thread."""
        self._supervisor: Supervisor | None = None
        self._watch: PipelineWatch | None = None
        self._stopped = False
        self._wakeup = Wakeup()
        self._partial = b""
        channel.settimeout(SEND_SECONDS)
        self._log = logs.StructuredLogger(pipeline=spec.pipeline)

    def run(self) -> int:
        """Returns the exit code."""
        signals = self._handle_signals()
        logs.configure(as_json=self._spec.as_json, pipeline=self._spec.pipeline, pid=os.getpid())
        for logger, level in self._spec.levels.items():
            logs.set_level(logger, level)
        ended: list[int] = []

        def work() -> None:
            ended.append(self._work())
            self._wakeup.set()

        thread = threading.Thread(target=work, name="pipeline", daemon=True)
        self._send()
        thread.start()
        while thread.is_alive():
            waits: list[Any] = [self._wakeup, signals]
            waits += [self._channel] if self._channel else []
            ready = select.select(waits, [], [], REPORT_SECONDS)[0]
            if signals in ready:
                signals.recv(4096)
            if self._channel in ready:
                self._receive()
            self._wakeup.clear()
            self._send()
            signal.alarm(ALARM_SECONDS)
        self._send()
        return ended[0] if ended else EXIT_BUG

    def _work(self) -> int:
        """Runs the pipeline in its own thread; returns the exit code."""
        try:
            self._run_supervisor()
        except TailraceError as error:
            if self._supervisor is None or error is not self._supervisor.failure:
                self._log.error("failed", error=error.code, what=error.what, why=error.why, remedy=error.remedy)
            self._observe(FAILED, error)
            return error.exit_code
        except BaseException:  # noqa: BLE001 - a bug must be reported, and end the process
            self._log.error("failed", what="a bug in Tailrace", trace=mask(traceback.format_exc()))
            self._observe(FAILED, _bug())
            return EXIT_BUG
        self._observe(STOPPED, None)
        return 0

    def _run_supervisor(self) -> None:
        settings = load_pipeline(Path(self._spec.file))
        if settings.pipeline != self._spec.pipeline:
            raise ConfigError(
                f"{self._spec.file} has the pipeline {settings.pipeline}, not {self._spec.pipeline}",
                why="The file was changed a moment ago.",
                remedy="The worker reads the file again by itself.",
            )
        wiring = wire(settings, adopt=self._spec.adopt, warn=lambda what: self._log.warning("notice", what=what))
        supervisor = Supervisor(
            wiring, recover=recovery_for(settings), on_state=self._observe, follow_target=self._spec.follow_target
        )
        reduce_garbage_collection()
        self._supervisor = supervisor
        if self._stopped:
            supervisor.stop()
        self._watch = PipelineWatch(wiring, supervisor)
        self._watch.start()
        try:
            supervisor.run()
        finally:
            self._watch.close()

    def _observe(self, state: str, error: TailraceError | None) -> None:
        """Called by the supervisor's thread."""
        if (state, error) != self._seen:
            self._seen = state, error
            self._wakeup.set()

    def _handle_signals(self) -> socket.socket:
        """Installs the handlers; returns a socket that becomes readable on a signal, whichever thread receives it."""
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        signal.set_wakeup_fd(theirs.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        return ours

    def _stop(self, *_: object) -> None:
        if not self._stopped:
            # Started first: the process must exit in time even if the pipeline waits.
            leave = threading.Timer(EXIT_SECONDS, self._leave)
            leave.daemon = True
            leave.start()
        self._stopped = True
        if self._supervisor is not None:
            self._supervisor.stop()

    def _leave(self) -> NoReturn:
        self._log.warning("stopped", what="a server did not answer in time; the next start resumes at the position")
        os._exit(0)

    def _report(self) -> PipelineReport:
        state, error = self._seen
        stored = self._supervisor.stored() if self._supervisor is not None else None
        return PipelineReport(
            state=state,
            at_ms=time.time_ns() // 1_000_000,
            pid=os.getpid(),
            error=ErrorReport.of(error, may_recover=may_recover(error.code)) if error is not None else None,
            position=str(stored) if stored is not None else "",
            stored=to_stored(stored) if stored is not None else None,
            metrics=self._supervisor.metrics.snapshot() if self._supervisor is not None else {},
            facts=self._watch.facts if self._watch is not None else {},
        )

    def _send(self) -> None:
        if self._channel is None:
            return
        try:
            line = orjson.dumps(asdict(self._report()), option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE)
            self._channel.sendall(line)
        except OSError:
            self._lose_worker()

    def _receive(self) -> None:
        try:
            found = self._channel.recv(COMMAND_BYTES) if self._channel else b""
        except OSError:
            found = b""
        if not found:
            self._lose_worker()
            return
        *lines, self._partial = (self._partial + found).split(b"\n")
        for line in lines:
            self._carry_out(orjson.loads(line))

    def _carry_out(self, command: dict[str, Any]) -> None:
        if command.get("do") == "level":
            try:
                logs.set_level(command["logger"], command["level"])
            except ConfigError as error:
                self._log.warning("notice", what=error.what)

    def _lose_worker(self) -> None:
        """Stops the pipeline: without its worker nobody would notice, stop or restart it."""
        self._channel = None
        if not self._stopped:
            self._log.warning("stopping", what="the worker has ended")
            self._stop()


def _bug() -> PipelineCrashed:
    return PipelineCrashed(
        "the pipeline process failed because of a bug in Tailrace",
        why="Its log has the trace.",
        remedy="Please report it with the lines of the log. No event is lost: a restart resumes at the position.",
    )
