"""One pipeline of a worker: its configuration, the state it should be in, and its process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailrace.config.model import PipelineSettings
from tailrace.manager.report import RUNNING, STARTING, ErrorReport, PipelineReport


@dataclass(slots=True)
class ManagedPipeline:
    """A pipeline as the HTTP edge sees it.

    `config` is the flat configuration as it was given, with unresolved references; it may hold literal passwords, so
    mask it before it is shown. `file` holds the same settings as YAML, for commands. `settings` is None if they are
    invalid; `error` then says why.
    """

    name: str
    config: dict[str, str]
    file: Path
    from_topic: bool
    settings: PipelineSettings | None = None
    target: str = RUNNING
    """The state that a user asked for: RUNNING, PAUSED or STOPPED."""
    state: str = STARTING
    """The state of the process, or PAUSED, STOPPED, FAILED, RESTARTING while there is none."""
    error: ErrorReport | None = None
    report: PipelineReport | None = None
    """The last report of the process, kept after it ended."""
    restarts: int = 0
    """Automatic restarts since the pipeline last ran for a while."""
    restarts_total: int = 0
    """All automatic restarts since the worker started."""
    restart_at: float | None = None
    """When the next automatic restart is due, as a Unix time."""
    config_error: ErrorReport | None = None
    """Why the last change of the configuration is not applied: the process goes on with the one before."""
    pid: int | None = None
    """The process, while there is one."""
