"""The pipelines of one worker: starts, stops and restarts their processes, and changes their configurations.

All methods run in the worker's event loop; what waits for Kafka runs in threads.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.manager.managed import ManagedPipeline


class PipelineManager:
    """All pipelines of a worker. The HTTP edge reads `pipelines` and calls the methods."""

    def __init__(self) -> None:
        self.pipelines: dict[str, ManagedPipeline] = {}
        self.worker_id = ""
        """`host:port` under which the HTTP edge can be reached."""

    def get(self, name: str) -> ManagedPipeline:
        """Returns a pipeline; raises PipelineUnknown."""
        raise NotImplementedError

    async def cluster_id(self) -> str:
        """Returns the id of the Kafka cluster; empty if it is not known."""
        raise NotImplementedError

    async def create(self, name: str, config: Mapping[str, str], target: str) -> ManagedPipeline:
        """Stores a configuration and starts its pipeline; raises PipelineExists, ConfigError or ConfigsReadOnly."""
        raise NotImplementedError

    async def update(self, name: str, config: Mapping[str, str]) -> ManagedPipeline:
        """Replaces a configuration and restarts its pipeline."""
        raise NotImplementedError

    async def delete(self, name: str) -> None:
        """Stops a pipeline and removes its configuration. Slot, publication and position stay."""
        raise NotImplementedError

    async def set_target(self, name: str, target: str) -> None:
        """Makes RUNNING, PAUSED or STOPPED the state that the pipeline should be in, and stores that."""
        raise NotImplementedError

    async def restart(self, name: str, *, only_failed: bool = False) -> bool:
        """Restarts the process; returns False if nothing was restarted."""
        raise NotImplementedError

    def levels(self) -> dict[str, tuple[str, int | None]]:
        """Returns the level of each logger, and when it was changed (Unix milliseconds)."""
        raise NotImplementedError

    async def set_level(self, logger: str, level: str) -> list[str]:
        """Changes the level of a logger and of those below it, in the worker and in all pipeline processes."""
        raise NotImplementedError
