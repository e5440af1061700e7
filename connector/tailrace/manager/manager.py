"""The pipelines of one worker: starts, stops and restarts their processes, and changes their configurations.

All methods run in the worker's event loop; what waits for Kafka or for files runs in threads.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from tailrace.config.model import PipelineSettings
from tailrace.errors import (
    Action,
    ConfigError,
    ConfigsReadOnly,
    PipelineExists,
    PipelineUnknown,
    TailraceError,
    Unavailable,
)
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.topics import cluster_id
from tailrace.manager.config_topic import config_record, found_in_topic, parse_record
from tailrace.manager.folder import FolderScan, FoundPipeline, PipelineFolder, read_pipeline
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.process import ProcessSpec
from tailrace.manager.report import FAILED, RETRYING, RUNNING, ErrorReport
from tailrace.manager.restarts import RestartPolicy, may_recover
from tailrace.manager.runner import SILENT_SECONDS, PipelineRunner
from tailrace.manager.spawn import WarmProcess
from tailrace.manager.targets import StoredTargets
from tailrace.state import offsets
from tailrace.state.config_topic import ConfigTopic
from tailrace.state.target_state import TARGETS, write_target
from tailrace.worker import logs
from tailrace.worker.options import kafka_options

FOLDER_SECONDS = 2.0
"""How often the folder is read again."""
TOPIC_SECONDS = 1.0
"""How often the config topic and the stored target states are read again."""
_is_name = re.compile(r"[a-z0-9_-]{1,48}").fullmatch


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
    ) -> None:
        """Pipelines come from the files of `folder`, from `config_topic`, or from both."""
        self.pipelines: dict[str, ManagedPipeline] = {}
        self.worker_id = ""
        """`host:port` under which the HTTP edge can be reached."""
        self.problems: dict[str, ErrorReport] = {}
        """Files and records without a usable pipeline, by path or key."""
        self.warm = WarmProcess()
        self.is_started = False
        """Whether folder and config topic were read once."""
        self._folder = PipelineFolder(folder) if folder is not None else None
        self._topic = config_topic
        self._policy = restarts or RestartPolicy()
        self._silent_seconds = silent_seconds
        self._as_json = as_json
        self._runners: dict[str, PipelineRunner] = {}
        self._levels: dict[str, str] = {}
        self._missing: set[str] = set()
        """Pipelines whose file was missing in the last look."""
        self._tasks: list[asyncio.Task[None]] = []
        self._changing = asyncio.Lock()
        self._targets = StoredTargets()
        self._reading_targets = asyncio.Lock()
        self._files = tempfile.TemporaryDirectory(prefix="tailrace-worker-")
        self._log = logs.StructuredLogger("tailrace.worker")
        self._cluster = ""
        self._only: Path | None = None
        self._adopt: set[str] = set()
        self._on_end: Callable[[int], None] = lambda _: None

    # Life

    async def start(self) -> None:
        """Reads folder and config topic, starts their pipelines, and follows changes from now on."""
        if self._folder is not None:
            await self._sync_folder()
            self._tasks.append(asyncio.create_task(self._repeat(self._sync_folder, FOLDER_SECONDS)))
        self._tasks.append(asyncio.create_task(self._repeat(self._sync_targets, TOPIC_SECONDS)))
        if self._topic is not None:
            await self._open_topic(self._topic)
            self._tasks.append(asyncio.create_task(self._repeat(self._sync_topic, TOPIC_SECONDS)))
        self.is_started = True

    async def _open_topic(self, topic: ConfigTopic) -> None:
        """Creates or checks the config topic, and reads it. Waits while Kafka is unavailable."""
        while True:
            try:
                await asyncio.to_thread(topic.ensure)
                await self._sync_topic()
            except Unavailable as error:
                self._note_problem(topic.topic, error)
                await asyncio.sleep(TOPIC_SECONDS)
            else:
                self.problems.pop(topic.topic, None)
                return

    async def start_one(self, file: Path, *, adopt: bool, on_end: Callable[[int], None]) -> None:
        """Starts the pipeline of one file, which is not watched; `on_end` gets its exit code when it ends."""
        found = await asyncio.to_thread(read_pipeline, file)
        if found is None:
            raise ConfigError(f"{file} has no setting `pipeline`", remedy="Name the file of a pipeline.")
        if found.error is not None:
            raise found.error
        self._only, self._on_end = file, on_end
        if adopt:
            self._adopt.add(found.name)
        self._add(found, from_topic=False)
        self._runners[found.name].is_ready = True
        self._runners[found.name].wake()
        self.is_started = True

    async def close(self) -> None:
        """Ends all pipeline processes, at the same time, within 5 s."""
        for task in self._tasks:
            task.cancel()
        runners = list(self._runners.values())
        await asyncio.gather(*(runner.close() for runner in runners), return_exceptions=True)
        self._files.cleanup()

    # What the HTTP edge calls

    def get(self, name: str) -> ManagedPipeline:
        """Returns a pipeline; raises PipelineUnknown."""
        found = self.pipelines.get(name)
        if found is None:
            raise PipelineUnknown(
                f"there is no pipeline {name[:60]!r}",
                why="No file of the worker's folder and no record of its config topic has this name.",
                remedy="The list of connectors has all names.",
            )
        return found

    @property
    def bootstrap(self) -> str:
        """The Kafka servers of a pipeline whose configuration names none; empty if it must name them."""
        return self._topic.options.bootstrap if self._topic is not None else ""

    @property
    def base(self) -> Path:
        """The folder that relative paths of configurations refer to."""
        return self._folder.path if self._folder is not None else Path.cwd()

    async def cluster_id(self) -> str:
        """Returns the id of the Kafka cluster; empty if it is not known."""
        if not self._cluster and (options := self._any_kafka()) is not None:
            try:
                self._cluster = await asyncio.to_thread(lambda: cluster_id(offsets.admin_client(options)))
            except TailraceError:
                return ""
        return self._cluster

    async def create(self, name: str, config: Mapping[str, str], target: str) -> ManagedPipeline:
        """Stores a configuration and starts its pipeline; raises PipelineExists, ConfigError or ConfigsReadOnly."""
        topic = self._writable_topic()
        if name in self.pipelines:
            raise PipelineExists(
                f"there is already a pipeline {name}",
                why=f"It comes from {self._origin(self.pipelines[name])}.",
                remedy="Choose another name, or change the existing pipeline.",
            )
        found = await self._validated(name, config)
        await self._store_target(kafka_options(found), target)
        await asyncio.to_thread(topic.write, name, config_record(config))
        await self._sync_topic()
        return self.get(name)

    async def update(self, name: str, config: Mapping[str, str]) -> ManagedPipeline:
        """Replaces a configuration and restarts its pipeline."""
        pipeline = self._changeable(name)
        topic = self._writable_topic()
        await self._validated(pipeline.name, config)
        await asyncio.to_thread(topic.write, name, config_record(config))
        await self._sync_topic()
        return self.get(name)

    async def delete(self, name: str) -> None:
        """Stops a pipeline and removes its configuration. Slot, publication and position stay."""
        self._changeable(name)
        await asyncio.to_thread(self._writable_topic().write, name, None)
        await self._sync_topic()

    async def set_target(self, name: str, target: str) -> None:
        """Makes RUNNING, PAUSED or STOPPED the state that the pipeline should be in, and stores that."""
        pipeline = self.get(name)
        if pipeline.settings is None:
            raise ConfigError(
                f"the settings of {name} are invalid, so its target state cannot be stored",
                why=pipeline.error.what if pipeline.error else "",
                remedy=pipeline.error.remedy if pipeline.error else "",
            )
        if self._only is not None:
            _require_target(target)
            self._apply_target(pipeline, target)  # for this run only
            return
        await self._store_target(kafka_options(pipeline.settings), target)
        await self._sync_targets()

    async def restart(self, name: str, *, only_failed: bool = False) -> bool:
        """Restarts the process; returns False if nothing was restarted."""
        pipeline = self.get(name)
        if only_failed and pipeline.state != FAILED:
            return False
        if pipeline.settings is None and not pipeline.from_topic:
            await self._sync_folder()
        if pipeline.target != RUNNING or pipeline.settings is None:
            return False
        self._runners[name].restart()
        return True

    def levels(self) -> dict[str, tuple[str, int | None]]:
        """Returns the level of each logger, and when it was changed (Unix milliseconds)."""
        return logs.levels()

    async def set_level(self, logger: str, level: str) -> list[str]:
        """Changes the level of a logger and of those below it, in the worker and in all pipeline processes."""
        names = logs.set_level(logger, level)
        self._levels.pop(logger, None)
        self._levels[logger] = level
        for runner in self._runners.values():
            if runner.process is not None:
                runner.process.send({"do": "level", "logger": logger, "level": level})
        return names

    # Configurations

    async def _sync_folder(self) -> None:
        """Reads the folder, and applies what was added, changed or removed."""
        assert self._folder is not None  # noqa: S101 - called only with a folder
        async with self._changing:
            owners = {each.name: each.file for each in self.pipelines.values() if not each.from_topic}
            try:
                scan = await asyncio.to_thread(self._folder.scan, owners)
            except ConfigError as error:
                if not self.pipelines and not self.is_started:
                    raise
                self._note_problem(str(self._folder.path), error)
                return
            self._apply_scan(scan, owners)

    def _apply_scan(self, scan: FolderScan, owners: Mapping[str, Path]) -> None:
        reported = {str(file): error for file, error in scan.problems.items()}
        broken = {name for name, file in owners.items() if file in scan.problems and name not in scan.pipelines}
        for name in broken:
            self._refuse_change(self.pipelines[name], scan.problems[owners[name]])
        for found in scan.pipelines.values():
            known = self.pipelines.get(found.name)
            if known is not None and known.from_topic:
                # A file wins, because whoever puts it there has access to the machine.
                self._remove(found.name)
                known = None
            self._apply(found, known, from_topic=False)
        gone = owners.keys() - scan.pipelines.keys() - broken
        for name in gone & self._missing:  # an editor may replace a file in two steps
            self._log.info("removed", pipeline=name, file=str(owners[name]))
            self._remove(name)
        self._missing = gone - self._missing
        folder = str(self._folder.path) if self._folder else ""
        for place in [place for place in self.problems if place == folder or place.startswith(f"{folder}/")]:
            if place not in reported:
                del self.problems[place]
        for place, error in reported.items():
            self._note_problem(place, error)
        for file in scan.ignored:
            self._note_ignored(file)

    async def _sync_topic(self) -> None:
        """Reads the config topic, and applies what was written since."""
        topic = self._topic
        assert topic is not None  # noqa: S101 - called only with a topic
        async with self._changing:
            records = await asyncio.to_thread(lambda: list(topic.read()))
            # Only the last record of each key counts.
            for key, value in dict(records).items():
                await self._apply_record(key, value)

    async def _apply_record(self, key: bytes | None, value: bytes | None) -> None:
        place = f"{self._topic.topic if self._topic else ''}/{(key or b'').decode('utf-8', 'replace')[:100]}"
        self.problems.pop(place, None)
        try:
            if value is None:
                name = (key or b"").decode("utf-8", "replace")
                if name in self.pipelines and self.pipelines[name].from_topic:
                    self._log.info("removed", pipeline=name)
                    self._remove(name)
                return
            name, config = parse_record(key, value)
            known = self.pipelines.get(name)
            if known is not None and not known.from_topic:
                raise PipelineExists(
                    f"the config topic has the pipeline {name}, which the file {known.file} has already",
                    why="The file counts.",
                    remedy="Remove the file, or delete the configuration with a tombstone under that key.",
                )
            found = await asyncio.to_thread(self._materialised, name, config)
        except TailraceError as error:
            self._note_problem(place, error)
            return
        self._apply(found, known, from_topic=True)

    def _apply(self, found: FoundPipeline, known: ManagedPipeline | None, *, from_topic: bool) -> None:
        if known is None:
            self._add(found, from_topic=from_topic)
            return
        if found.error is not None and known.settings is not None:
            self._refuse_change(known, found.error)
            return
        is_same = found.config == known.config and found.file == known.file
        if found.settings is None:
            known.error = _report(found.error)
            return
        if is_same and known.settings is not None:
            if known.config_error is not None:
                self._log.info("configuration is valid again", pipeline=known.name)
            known.config_error = None
            return
        self._log.info("configuration changed", pipeline=known.name, file=str(found.file))
        known.config, known.file, known.settings, known.config_error = found.config, found.file, found.settings, None
        self._targets.watch(kafka_options(found.settings))
        self._runners[known.name].restart()

    def _add(self, found: FoundPipeline, *, from_topic: bool) -> None:
        pipeline = ManagedPipeline(found.name, found.config, found.file, from_topic, found.settings)
        if found.error is not None:
            pipeline.state, pipeline.error = FAILED, _report(found.error)
            self._log_error("invalid", found.error, pipeline=found.name)
        self.pipelines[found.name] = pipeline
        self._runners[found.name] = PipelineRunner(pipeline, self.warm, self._policy, self._spec, on_end=self._on_end)
        if found.settings is not None and self._only is None:
            self._targets.watch(kafka_options(found.settings))

    def _remove(self, name: str) -> None:
        del self.pipelines[name]
        runner = self._runners.pop(name)
        task = asyncio.create_task(runner.close())
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)
        self._targets.forget(name)

    def _spec(self, pipeline: ManagedPipeline) -> ProcessSpec:
        adopt = pipeline.name in self._adopt
        self._adopt.discard(pipeline.name)  # for one start only
        return ProcessSpec(
            pipeline.name,
            str(pipeline.file),
            adopt=adopt,
            obey_target=self._only is None,
            as_json=self._as_json,
            levels=dict(self._levels),
        )

    def _materialised(self, name: str, config: Mapping[str, str]) -> FoundPipeline:
        return found_in_topic(name, config, Path(self._files.name), self.base, self.bootstrap)

    async def _validated(self, name: str, config: Mapping[str, str]) -> PipelineSettings:
        """Validates a configuration, beside the file of the one that runs; raises ConfigError."""
        if not _is_name(name):
            raise ConfigError(
                f"{name[:60]!r} is not a name of a pipeline", remedy="Use a-z, 0-9, _ and -, at most 48 characters."
            )
        with tempfile.TemporaryDirectory(dir=self._files.name) as folder:
            found = await asyncio.to_thread(found_in_topic, name, config, Path(folder), self.base, self.bootstrap)
        if found.settings is None:
            raise found.error or ConfigError("the configuration is invalid")
        return found.settings

    def _writable_topic(self) -> ConfigTopic:
        if self._topic is None:
            raise ConfigsReadOnly(
                "this worker keeps no configurations, so none can be created, changed or deleted here",
                why="It runs the files of its folder only.",
                remedy="Put a file into the folder, or start the worker with --bootstrap host:9092: configurations are "
                "then kept on a topic.",
            )
        return self._topic

    def _changeable(self, name: str) -> ManagedPipeline:
        pipeline = self.get(name)
        if not pipeline.from_topic:
            raise ConfigsReadOnly(
                f"the pipeline {name} comes from the file {pipeline.file}",
                why="What is written in the file counts.",
                remedy="Change or remove the file: the worker notices it within seconds.",
                from_file=True,
            )
        return pipeline

    def _origin(self, pipeline: ManagedPipeline) -> str:
        return "the config topic" if pipeline.from_topic else f"the file {pipeline.file}"

    # Target states

    async def _store_target(self, options: KafkaOptions, target: str) -> None:
        _require_target(target)
        await asyncio.to_thread(write_target, options, target)

    async def _sync_targets(self) -> None:
        """Reads the stored target states, and lets pipelines start whose state is known."""
        async with self._reading_targets:
            names = list(self.pipelines)
            await asyncio.to_thread(self._targets.read)
        for name in names:
            pipeline, runner = self.pipelines.get(name), self._runners.get(name)
            if pipeline is None or runner is None or pipeline.settings is None:
                continue
            target, error = self._targets.target_of(name), self._targets.error_of(name)
            if target is not None:
                self._apply_target(pipeline, target)
            elif error is not None and error.action is Action.RETRY and not runner.is_ready:
                # Without Kafka it could not run anyway, and it may be paused.
                pipeline.state, pipeline.error = RETRYING, _report(error)
                continue
            if not runner.is_ready and (target is not None or error is not None):
                runner.is_ready = True
                runner.wake()

    def _apply_target(self, pipeline: ManagedPipeline, target: str) -> None:
        if pipeline.target != target:
            self._log.info("target state", pipeline=pipeline.name, target=target)
            pipeline.target = target
            self._runners[pipeline.name].wake()

    def _any_kafka(self) -> KafkaOptions | None:
        if self._topic is not None:
            return self._topic.options
        first = next((each.settings for each in self.pipelines.values() if each.settings is not None), None)
        return kafka_options(first) if first is not None else None

    # Reports

    def _refuse_change(self, pipeline: ManagedPipeline, error: TailraceError) -> None:
        """Keeps the process of a pipeline whose new configuration is invalid."""
        if pipeline.settings is None:
            pipeline.error = _report(error)
            return
        if pipeline.config_error is None or pipeline.config_error.what != error.what:
            self._log_error("change refused", error, pipeline=pipeline.name)
        pipeline.config_error = _report(error)

    def _note_problem(self, place: str, error: TailraceError) -> None:
        if place not in self.problems or self.problems[place].what != error.what:
            self._log_error("invalid", error)
        self.problems[place] = _report(error)

    def _note_ignored(self, file: Path) -> None:
        self._log.debug("ignored", file=str(file), why="it has no setting `pipeline`")

    def _log_error(self, event: str, error: TailraceError, **fields: object) -> None:
        self._log.error(event, **fields, error=error.code, what=error.what, why=error.why, remedy=error.remedy)

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
            else:
                last = ""
            await asyncio.sleep(seconds)


def _require_target(target: str) -> None:
    if target not in TARGETS:
        raise ConfigError(f"{target[:20]!r} is not a target state", remedy=f"Give one of: {', '.join(TARGETS)}.")


def _report(error: TailraceError | None) -> ErrorReport:
    if error is None:
        return ErrorReport("ConfigError", "the configuration is invalid")
    return ErrorReport.of(error, may_recover=may_recover(error.code))
