"""The pipelines of a worker and their runners: adds, changes and removes them as their configurations say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.errors import PipelineUnknown, TailraceError
from tailrace.manager.folder import FoundPipeline
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.process import ProcessSpec
from tailrace.manager.report import FAILED, ErrorReport
from tailrace.manager.restarts import RestartPolicy, may_recover
from tailrace.manager.runner import SILENT_SECONDS, PipelineRunner
from tailrace.manager.spawn import WarmProcess
from tailrace.manager.targets import StoredTargets
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.options import kafka_options

CLOSE_SECONDS = 4.7
"""How long the ends of all processes are awaited: the warm process, which reports them, may hang itself."""


@dataclass(slots=True)
class RunOptions:
    """How all pipelines of a worker are run. `on_end` gets the exit code of a process that nobody stopped."""

    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    silent_seconds: float = SILENT_SECONDS
    as_json: bool = True
    follow_target: bool = True
    """Without it, target states are neither read nor stored."""
    on_end: Callable[[int], None] = lambda _: None


class PipelineRegistry:
    """Belongs to the worker's event loop."""

    def __init__(self, options: RunOptions) -> None:
        self.pipelines: dict[str, ManagedPipeline] = {}
        self.runners: dict[str, PipelineRunner] = {}
        self.problems: dict[str, ErrorReport] = {}
        """Files and records without a usable pipeline, by path or key."""
        self.levels: dict[str, str] = {}
        """Levels of loggers that were changed; new processes get them, too."""
        self.warm = WarmProcess()
        self.targets = StoredTargets()
        self.options = options
        self.adopt: set[str] = set()
        """Pipelines whose next start accepts the current slot and publication."""
        self._ending: set[asyncio.Task[None]] = set()
        self._log = StructuredLogger("tailrace.worker")

    def get(self, name: str) -> ManagedPipeline:
        """Returns a pipeline; raises PipelineUnknown."""
        found = self.pipelines.get(name)
        if found is None:
            raise PipelineUnknown(
                f"there is no pipeline {name[:60]!r}",
                why="No file of the worker's folder and no record of its config topic has this name.",
                remedy="The list of pipelines has all names.",
            )
        return found

    def apply(self, found: FoundPipeline, *, from_topic: bool) -> None:
        """Makes a pipeline run with this configuration; a process goes on if nothing has changed for it."""
        known = self.pipelines.get(found.name)
        if known is None:
            self.add(found, from_topic=from_topic)
        elif found.settings is None:
            self.refuse_change(known, found.error)
        elif known.settings is not None and found.config == known.config and found.file == known.file:
            if known.config_error is not None:
                self._log.info("configuration is valid again", pipeline=known.name)
            known.config_error = None
        else:
            self._log.info("configuration changed", pipeline=known.name, file=str(found.file))
            known.config, known.file = found.config, found.file
            known.settings, known.config_error = found.settings, None
            self.targets.watch(kafka_options(found.settings))
            self.runners[known.name].restart()

    def add(self, found: FoundPipeline, *, from_topic: bool) -> PipelineRunner:
        """Adds a pipeline. It starts when its target state is known; see `PipelineRunner.is_ready`."""
        pipeline = ManagedPipeline(found.name, found.config, found.file, from_topic, found.settings)
        if found.settings is None:
            pipeline.state, pipeline.error = FAILED, report_of(found.error)
            self.log_error("invalid", found.error, pipeline=found.name)
        else:
            self.targets.watch(kafka_options(found.settings))
        options = self.options
        self.pipelines[found.name] = pipeline
        self.runners[found.name] = PipelineRunner(
            pipeline,
            self.warm,
            options.restarts,
            self._spec,
            on_end=options.on_end,
            silent_seconds=options.silent_seconds,
        )
        return self.runners[found.name]

    def remove(self, name: str) -> None:
        """Removes a pipeline, and ends its process in the background."""
        del self.pipelines[name]
        self.targets.forget(name)
        task = asyncio.create_task(self.runners.pop(name).close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def refuse_change(self, pipeline: ManagedPipeline, error: TailraceError | None) -> None:
        """Keeps the process of a pipeline whose new configuration is invalid, and reports the error."""
        found = report_of(error)
        if pipeline.settings is None:
            pipeline.error = found
            return
        if pipeline.config_error is None or pipeline.config_error.what != found.what:
            self.log_error("change refused", error, pipeline=pipeline.name)
        pipeline.config_error = found

    def apply_target(self, pipeline: ManagedPipeline, target: str) -> None:
        if pipeline.target != target:
            self._log.info("target state", pipeline=pipeline.name, target=target)
            pipeline.target = target
            self.runners[pipeline.name].wake()

    def note_problem(self, place: str, error: TailraceError) -> None:
        """Reports a file or a record that is no pipeline; the same problem is logged once."""
        if place not in self.problems or self.problems[place].what != error.what:
            self.log_error("invalid", error)
        self.problems[place] = report_of(error)

    def log_error(self, event: str, error: TailraceError | None, **fields: object) -> None:
        if error is not None:
            self._log.error(event, **fields, error=error.code, what=error.what, why=error.why, remedy=error.remedy)

    async def close(self) -> None:
        """Ends all processes, at the same time. Those that are left are killed: they end with the worker anyway."""
        closing = {asyncio.create_task(runner.close()) for runner in self.runners.values()} | self._ending
        if closing and (await asyncio.wait(closing, timeout=CLOSE_SECONDS))[1]:
            for runner in self.runners.values():
                runner.kill_at_once()

    def _spec(self, pipeline: ManagedPipeline) -> ProcessSpec:
        adopt = pipeline.name in self.adopt
        self.adopt.discard(pipeline.name)  # for one start only
        return ProcessSpec(
            pipeline.name,
            str(pipeline.file),
            adopt=adopt,
            follow_target=self.options.follow_target,
            as_json=self.options.as_json,
            levels=dict(self.levels),
        )


def report_of(error: TailraceError | None) -> ErrorReport:
    if error is None:
        return ErrorReport("ConfigError", "the configuration is invalid")
    return ErrorReport.of(error, may_recover=may_recover(error.code))
