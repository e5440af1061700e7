"""The stored target states of all pipelines of a worker, with one reader per offsets topic."""

from __future__ import annotations

from tailrace.errors import TailraceError
from tailrace.kafka.client import KafkaOptions
from tailrace.state.target_state import RUNNING, TargetFollower

Group = tuple[str, str, tuple[tuple[str, object], ...]]
"""Bootstrap servers, offsets topic and client settings."""


class StoredTargets:
    """`read` blocks and is called in a thread, by one at a time."""

    def __init__(self) -> None:
        self._followers: dict[Group, TargetFollower] = {}
        self._groups: dict[str, Group] = {}
        self._found: dict[tuple[Group, str], str] = {}
        self._errors: dict[Group, TailraceError] = {}
        self._is_read: set[Group] = set()

    def watch(self, options: KafkaOptions) -> None:
        """Includes a pipeline, from the next `read` on."""
        group = options.bootstrap, options.offsets_topic, tuple(sorted(options.settings.items()))
        self._groups[options.pipeline] = group
        if group not in self._followers:
            self._followers[group] = TargetFollower(options)

    def forget(self, pipeline: str) -> None:
        self._groups.pop(pipeline, None)

    def read(self) -> None:
        """Reads what was written since the last call, from all topics. Errors are kept for `error_of`."""
        used = set(self._groups.values())
        for group, follower in list(self._followers.items()):
            if group not in used:
                follower.close()
                del self._followers[group]
                continue
            try:
                for pipeline, target in follower.read():
                    self._found[group, pipeline] = target
            except TailraceError as error:
                self._errors[group] = error
                follower.close()
            else:
                self._errors.pop(group, None)
                self._is_read.add(group)

    def target_of(self, pipeline: str) -> str | None:
        """Returns the target state as it was read last: RUNNING if none is stored, None if nothing was read yet."""
        group = self._groups.get(pipeline)
        if group is None or group not in self._is_read:
            return None
        return self._found.get((group, pipeline), RUNNING)

    def error_of(self, pipeline: str) -> TailraceError | None:
        """Returns why the last reading failed."""
        group = self._groups.get(pipeline)
        return self._errors.get(group) if group is not None else None

    def close(self) -> None:
        for follower in self._followers.values():
            follower.close()
