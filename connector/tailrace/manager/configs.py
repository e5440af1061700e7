"""Follows the configurations of a worker's pipelines: the files of a folder, and the records of the config topic.

One bad file or record never affects the others. A file counts more than a record of the same name.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tailrace.config.allowed import Allowed
from tailrace.config.model import PipelineSettings
from tailrace.errors import ConfigError, ConfigsReadOnly, PipelineExists, TailraceError, Unavailable
from tailrace.manager.config_topic import config_record, found_in_topic, parse_record
from tailrace.manager.folder import FolderScan, PipelineFolder
from tailrace.manager.managed import ManagedPipeline
from tailrace.manager.registry import PipelineRegistry
from tailrace.state.config_topic import ConfigTopic
from tailrace.worker.logs import StructuredLogger

OPEN_SECONDS = 1.0
_is_name = re.compile(r"[a-z0-9_-]{1,48}").fullmatch


class PipelineConfigs:
    """Applies what was added, changed or removed to the registry, one change at a time."""

    def __init__(
        self, registry: PipelineRegistry, folder: Path | None, topic: ConfigTopic | None, allowed: Allowed
    ) -> None:
        """`allowed` is what configurations of the topic may use of this machine; files may use everything."""
        self.allowed = allowed
        self.folder = PipelineFolder(folder) if folder is not None else None
        self.topic = topic
        self._registry = registry
        self._records: dict[str, bytes] = {}
        """The configurations on the topic, also those that a file hides."""
        self._missing: set[str] = set()
        """Pipelines whose file was missing in the last scan."""
        self._was_scanned = False
        self._changing = asyncio.Lock()
        self._files = tempfile.TemporaryDirectory(prefix="tailrace-worker-")
        self._log = StructuredLogger("tailrace.worker")

    @property
    def base(self) -> Path:
        """The folder that relative paths of configurations refer to."""
        return self.folder.path if self.folder is not None else Path.cwd()

    @property
    def bootstrap(self) -> str:
        """The Kafka servers of a configuration that names none."""
        return self.topic.options.bootstrap if self.topic is not None else ""

    def close(self) -> None:
        self._files.cleanup()

    # The folder

    async def sync_folder(self) -> None:
        """Reads the folder, and applies the differences. Raises ConfigError if it cannot be read at the start."""
        if self.folder is None:
            return
        async with self._changing:
            owners = {each.name: each.file for each in self._registry.pipelines.values() if not each.from_topic}
            try:
                scan = await asyncio.to_thread(self.folder.scan, owners)
            except ConfigError as error:
                if not self._was_scanned:
                    raise
                self._registry.note_problem(str(self.folder.path), error)
                return
            self._was_scanned = True
            self._forget_problems(self.folder.path, scan)
            for name in self._apply_scan(scan, owners):
                if name in self._records:
                    await self._apply_record(name.encode(), self._records[name])

    def _apply_scan(self, scan: FolderScan, owners: Mapping[str, Path]) -> set[str]:
        """Applies what was found; returns the pipelines that were removed."""
        registry = self._registry
        broken = {name for name, file in owners.items() if file in scan.problems and name not in scan.pipelines}
        for name in broken:
            registry.refuse_change(registry.pipelines[name], scan.problems[owners[name]])
        for found in scan.pipelines.values():
            if found.name in registry.pipelines and registry.pipelines[found.name].from_topic:
                registry.remove(found.name)
            registry.apply(found, from_topic=False)
        for file, error in scan.problems.items():
            registry.note_problem(str(file), error)
        for file in scan.ignored:
            self._log.debug("ignored", file=str(file), why="it has no setting `pipeline`")
        gone = owners.keys() - scan.pipelines.keys() - broken
        removed = gone & self._missing  # not at once: an editor may replace a file in two steps
        for name in removed:
            self._log.info("removed", pipeline=name, file=str(owners[name]))
            registry.remove(name)
        self._missing = gone - removed
        return removed

    def _forget_problems(self, folder: Path, scan: FolderScan) -> None:
        problems = self._registry.problems
        for place in list(problems):
            path = Path(place)
            if path == folder or (path.parent == folder and path not in scan.problems):
                del problems[place]

    # The topic

    async def open_topic(self) -> None:
        """Creates or checks the config topic, and reads it. Waits while Kafka is unavailable."""
        topic = self.topic
        while topic is not None:
            try:
                await asyncio.to_thread(topic.ensure)
                await self.sync_topic()
            except Unavailable as error:
                self._registry.note_problem(topic.topic, error)
                await asyncio.sleep(OPEN_SECONDS)
            else:
                self._registry.problems.pop(topic.topic, None)
                return

    async def sync_topic(self) -> None:
        """Reads the config topic, and applies what was written since."""
        topic = self.topic
        if topic is None:
            return
        async with self._changing:
            records = await asyncio.to_thread(lambda: list(topic.read()))
            for key, value in dict(records).items():  # only the last record of each key counts
                await self._apply_record(key, value)

    async def _apply_record(self, key: bytes | None, value: bytes | None) -> None:
        registry, name = self._registry, (key or b"").decode("utf-8", "replace")
        place = f"{self.topic.topic if self.topic else ''}/{name[:100]}"
        registry.problems.pop(place, None)
        if value is None:
            self._records.pop(name, None)
            if name in registry.pipelines and registry.pipelines[name].from_topic:
                self._log.info("removed", pipeline=name)
                registry.remove(name)
            return
        try:
            name, config = parse_record(key, value)
            self._records[name] = value
            known = registry.pipelines.get(name)
            if known is not None and not known.from_topic:
                raise PipelineExists(
                    f"the config topic has the pipeline {name}, which the file {known.file} has already",
                    why="The file counts.",
                    remedy="Remove the file, or delete the configuration with a tombstone under that key.",
                )
            found = await asyncio.to_thread(
                found_in_topic, name, config, Path(self._files.name), self.base, self.bootstrap, self.allowed
            )
        except TailraceError as error:
            registry.note_problem(place, error)
            return
        registry.apply(found, from_topic=True)

    # Changes over HTTP

    async def store(self, name: str, config: Mapping[str, str]) -> None:
        """Writes a configuration to the topic, and applies it."""
        await asyncio.to_thread(self.writable().write, name, config_record(config))
        await self.sync_topic()

    async def delete(self, name: str) -> None:
        """Deletes a configuration from the topic, and its pipeline."""
        await asyncio.to_thread(self.writable().write, name, None)
        await self.sync_topic()

    async def validated(self, name: str, config: Mapping[str, str]) -> PipelineSettings:
        """Validates a configuration, beside the one that runs; raises ConfigError."""
        if not _is_name(name):
            raise ConfigError(
                f"{name[:60]!r} is not a name of a pipeline", remedy="Use a-z, 0-9, _ and -, at most 48 characters."
            )
        with tempfile.TemporaryDirectory(dir=self._files.name) as folder:
            found = await asyncio.to_thread(
                found_in_topic, name, config, Path(folder), self.base, self.bootstrap, self.allowed
            )
        if found.settings is None:
            raise found.error or ConfigError("the configuration is invalid")
        return found.settings

    def writable(self) -> ConfigTopic:
        """Returns the config topic; raises ConfigsReadOnly if there is none."""
        if self.topic is None:
            raise ConfigsReadOnly(
                "this worker keeps no configurations, so none can be created, changed or deleted here",
                why="It runs the files of its folder only.",
                remedy="Put a file into the folder, or start the worker with --bootstrap host:9092: configurations are "
                "then kept on a topic.",
            )
        return self.topic

    def require_changeable(self, pipeline: ManagedPipeline) -> None:
        """Raises ConfigsReadOnly for a pipeline whose configuration is not on the topic."""
        if not pipeline.from_topic:
            raise ConfigsReadOnly(
                f"the pipeline {pipeline.name} comes from the file {pipeline.file}",
                why="What is written in the file counts.",
                remedy="Change or remove the file: the worker notices it within seconds.",
                from_file=True,
            )
        self.writable()
