"""The pipelines of one worker: starts, stops and restarts their processes, and changes their configurations.

All methods run in the worker's event loop; what waits for Kafka or for files runs in threads.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from tailrace.config.allowed import NOTHING, Allowed
from tailrace.config.secrets import mask
from tailrace.errors import Action, ConfigError, PipelineExists, TailraceError
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.topics import cluster_id
from tailrace.manager.configs import PipelineConfigs
from tailrace.manager.folder import read_pipeline
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.registry import PipelineRegistry, RunOptions, report_of
from tailrace.manager.report import FAILED, RETRYING, RUNNING, ErrorReport
from tailrace.manager.restarts import RestartPolicy
from tailrace.manager.runner import SILENT_SECONDS
from tailrace.manager.spawn import WarmProcess
from tailrace.state import offsets
from tailrace.state.config_topic import ConfigTopic
from tailrace.state.target_state import TARGETS, write_target
from tailrace.worker import logs
from tailrace.worker.options import kafka_options

FOLDER_SECONDS = 2.0
"""How often the folder is read again."""
TOPIC_SECONDS = 1.0
"""How often the config topic and the stored target states are read again."""

CLUSTER_SECONDS = 2.0
"""How long a request waits for the id of the Kafka cluster: `/` is a common health check."""


class PipelineManager:
    """All pipelines of a worker. The HTTP edge reads `pipelines` and calls the methods."""

    def __init__(
        self,
        folder: Path | None = None,
        config_topic: ConfigTopic | None = None,
        *,
        restarts: RestartPolicy | None = None,
        silent_seconds: float = SILENT_SECONDS,
        as_json: bool = True,
        allowed: Allowed = NOTHING,
    ) -> None:
        """Pipelines come from the files of `folder`, from `config_topic`, or from both.

        `allowed` is what configurations of the topic may use of this machine.
        """
        options = RunOptions(restarts or RestartPolicy(), silent_seconds, as_json)
        self._registry = PipelineRegistry(options)
        self._configs = PipelineConfigs(self._registry, folder, config_topic, allowed)
        self.worker_id = ""
        """`host:port` under which the HTTP edge can be reached."""
        self.is_started = False
        """Whether folder and config topic were read once."""
        self._tasks: list[asyncio.Task[None]] = []
        self._reading_targets = asyncio.Lock()
        self._log = logs.StructuredLogger("tailrace.worker")
        self._cluster = ""
        self._asking: asyncio.Task[None] | None = None

    @property
    def pipelines(self) -> dict[str, ManagedPipeline]:
        """All pipelines by name."""
        return self._registry.pipelines

    @property
    def problems(self) -> dict[str, ErrorReport]:
        """Files and records without a usable pipeline, by path or key."""
        return self._registry.problems

    @property
    def warm(self) -> WarmProcess:
        """The process from which pipeline processes and commands are forked."""
        return self._registry.warm

    @property
    def bootstrap(self) -> str:
        """The Kafka servers of a pipeline whose configuration names none; empty if it must name them."""
        return self._configs.bootstrap

    @property
    def allowed(self) -> Allowed:
        """What configurations that are sent over REST may use of this machine."""
        return self._configs.allowed

    @property
    def base(self) -> Path:
        """The folder that relative paths of configurations refer to."""
        return self._configs.base

    async def start(self) -> None:
        """Reads folder and config topic, starts their pipelines, and follows changes from now on."""
        await self._configs.sync_folder()
        self._follow(self._configs.sync_folder, FOLDER_SECONDS)
        self._follow(self._sync_targets, TOPIC_SECONDS)
        await self._configs.open_topic()
        self._follow(self._configs.sync_topic, TOPIC_SECONDS)
        self.is_started = True

    async def start_one(self, file: Path, *, adopt: bool, on_end: Callable[[int], None]) -> None:
        """Starts the pipeline of one file, which is not watched; `on_end` gets its exit code when it ends."""
        found = await asyncio.to_thread(read_pipeline, file)
        if found is None:
            raise ConfigError(f"{file} has no setting `pipeline`", remedy="Name the file of a pipeline.")
        if found.error is not None:
            raise found.error
        registry = self._registry
        registry.options.follow_target, registry.options.on_end = False, on_end
        registry.adopt |= {found.name} if adopt else set()
        runner = registry.add(found, from_topic=False)
        runner.is_ready = True
        runner.wake()
        self.is_started = True

    async def close(self) -> None:
        """Ends all pipeline processes, at the same time, within 5 s."""
        for task in self._tasks:
            task.cancel()
        await self._registry.close()
        self._configs.close()

    def get(self, name: str) -> ManagedPipeline:
        """Returns a pipeline; raises PipelineUnknown."""
        return self._registry.get(name)

    async def cluster_id(self) -> str:
        """Returns the id of the Kafka cluster; empty if Kafka does not tell it soon."""
        if not self._cluster and (options := self._any_kafka()) is not None:
            if self._asking is None or self._asking.done():  # all callers wait for the same answer
                self._asking = asyncio.create_task(self._ask_cluster_id(options))
            await asyncio.wait([self._asking], timeout=CLUSTER_SECONDS)
        return self._cluster

    async def _ask_cluster_id(self, options: KafkaOptions) -> None:
        try:
            self._cluster = await asyncio.to_thread(lambda: cluster_id(offsets.admin_client(options)))
        except TailraceError:
            pass  # the next request asks again

    async def create(self, name: str, config: Mapping[str, str], target: str) -> ManagedPipeline:
        """Stores a configuration and starts its pipeline; raises PipelineExists, ConfigError or ConfigsReadOnly."""
        self._configs.writable()
        known = self.pipelines.get(name)
        if known is not None:
            raise PipelineExists(
                f"there is already a pipeline {name}",
                why=f"It comes from {'the config topic' if known.from_topic else f'the file {known.file}'}.",
                remedy="Choose another name, or change the existing pipeline.",
            )
        settings = await self._configs.validated(name, config)
        await self._store_target(kafka_options(settings), target)
        await self._configs.store(name, config)
        return self.get(name)

    async def update(self, name: str, config: Mapping[str, str]) -> ManagedPipeline:
        """Replaces a configuration and restarts its pipeline."""
        self._configs.require_changeable(self.get(name))
        await self._configs.validated(name, config)
        await self._configs.store(name, config)
        return self.get(name)

    async def delete(self, name: str) -> None:
        """Stops a pipeline and removes its configuration. Slot, publication and position stay."""
        self._configs.require_changeable(self.get(name))
        await self._configs.delete(name)

    async def set_target(self, name: str, target: str) -> None:
        """Makes RUNNING, PAUSED or STOPPED the state that the pipeline should be in, and stores that."""
        pipeline = self.get(name)
        if pipeline.settings is None:
            raise ConfigError(
                f"the settings of {name} are invalid, so its target state cannot be stored",
                why=pipeline.error.what if pipeline.error else "",
                remedy=pipeline.error.remedy if pipeline.error else "",
            )
        if self._registry.options.follow_target:
            await self._store_target(kafka_options(pipeline.settings), target)
            await self._sync_targets()
        else:
            _require_target(target)
            self._registry.apply_target(pipeline, target)  # for this run only

    async def restart(self, name: str, *, only_failed: bool = False) -> bool:
        """Restarts the process; returns False if nothing was restarted."""
        pipeline = self.get(name)
        if only_failed and pipeline.state != FAILED:
            return False
        if pipeline.settings is None and not pipeline.from_topic:
            await self._configs.sync_folder()
        if pipeline.target != RUNNING or pipeline.settings is None:
            return False
        self._registry.runners[name].restart()
        return True

    def levels(self) -> dict[str, tuple[str, int | None]]:
        """Returns the level of each logger, and when it was changed (Unix milliseconds)."""
        return logs.levels()

    async def set_level(self, logger: str, level: str) -> list[str]:
        """Changes the level of a logger and of those below it, in the worker and in all pipeline processes."""
        names = logs.set_level(logger, level)
        self._registry.levels.pop(logger, None)
        self._registry.levels[logger] = level  # the last change is applied last
        for runner in self._registry.runners.values():
            if runner.process is not None:
                runner.process.send({"do": "level", "logger": logger, "level": level})
        return names

    async def _store_target(self, options: KafkaOptions, target: str) -> None:
        _require_target(target)
        await asyncio.to_thread(write_target, options, target)

    async def _sync_targets(self) -> None:
        """Reads the stored target states, and lets pipelines start whose state is known."""
        registry = self._registry
        async with self._reading_targets:
            names = list(self.pipelines)
            await asyncio.to_thread(registry.targets.read)
            for name in names:
                self._apply_stored_target(name)

    def _apply_stored_target(self, name: str) -> None:
        pipeline, runner = self.pipelines.get(name), self._registry.runners.get(name)
        if pipeline is None or runner is None or pipeline.settings is None:
            return
        target, error = self._registry.targets.target_of(name), self._registry.targets.error_of(name)
        if target is not None:
            self._registry.apply_target(pipeline, target)
        elif error is not None and error.action is Action.RETRY and not runner.is_ready:
            # Without Kafka it could not run anyway, and it may be paused.
            pipeline.state, pipeline.error = RETRYING, report_of(error)
            return
        if not runner.is_ready and (target is not None or error is not None):
            runner.is_ready = True
            runner.wake()

    def _any_kafka(self) -> KafkaOptions | None:
        if self._configs.topic is not None:
            return self._configs.topic.options
        first = next((each.settings for each in self.pipelines.values() if each.settings is not None), None)
        return kafka_options(first) if first is not None else None

    def _follow(self, step: Callable[[], Awaitable[None]], seconds: float) -> None:
        self._tasks.append(asyncio.create_task(self._repeat(step, seconds)))

    async def _repeat(self, step: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Calls a step again and again; an error is logged once, and the next call tries again."""
        last = ""
        while True:
            try:
                await step()
            except TailraceError as error:
                if error.what != last:
                    self._log.warning("waiting", error=error.code, what=error.what, why=error.why)
                last = error.what
            except Exception as error:  # noqa: BLE001 - a bug in one step must not end the worker's watch
                self._log.error("waiting", error="Bug", what=repr(error), trace=mask(traceback.format_exc()))
            else:
                last = ""
            await asyncio.sleep(seconds)


def _require_target(target: str) -> None:
    if target not in TARGETS:
        raise ConfigError(f"{target[:20]!r} is not a target state", remedy=f"Give one of: {', '.join(TARGETS)}.")
