"""A pipeline inside of a service, whose source is the service's embedded outbox.

    outbox = EmbeddedOutbox("/var/lib/node/outbox")
    with EmbeddedPipeline("mempool.yaml", outbox) as pipeline:
        ...  # the service; `pipeline.state` and `pipeline.error` say how it is

One process may open the outbox, so the pipeline runs in a thread of the process that writes to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tailrace.config.load import load_pipeline
from tailrace.config.model import PipelineSettings
from tailrace.embedded.outbox import EmbeddedOutbox
from tailrace.errors import ConfigError, SourceUnavailable, TailraceError
from tailrace.pipeline.loop import RowSource
from tailrace.positions.base import Position
from tailrace.sources.embedded.source import EmbeddedSource
from tailrace.state.offsets import Admin
from tailrace.state.stored_state import require_position_known, require_stored
from tailrace.wakeup import Wakeup
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.outage import ServerProbe
from tailrace.worker.supervisor import Supervisor
from tailrace.worker.wiring import Wiring, assemble

STARTING, RUNNING, FAILED, STOPPED = "STARTING", "RUNNING", "FAILED", "STOPPED"


@dataclass(frozen=True, slots=True)
class EmbeddedOptions:
    """What takes the place of a database's options."""

    outbox: EmbeddedOutbox
    adopt: bool = False


class EmbeddedPipeline:
    """Use it as a context manager, or call `start` and `stop`."""

    def __init__(self, settings: PipelineSettings | Path | str, outbox: EmbeddedOutbox, *, adopt: bool = False) -> None:
        """`settings` names the outbox as `source.rocksdb`. `adopt`: for errors that ask for it."""
        self._settings = settings if isinstance(settings, PipelineSettings) else load_pipeline(settings)
        _require_same_folder(self._settings, outbox)
        log = StructuredLogger("tailrace.worker", pipeline=self._settings.pipeline)
        wiring = assemble(
            EmbeddedWiring,
            self._settings,
            EmbeddedOptions(outbox, adopt),
            lambda what: log.warning("notice", what=what),
        )
        self._supervisor = Supervisor(wiring, on_state=self._note)
        self._thread = threading.Thread(target=self._run, name=f"pipeline {self._settings.pipeline}", daemon=True)
        self.state = STARTING
        """STARTING, RUNNING, WAITING (another instance runs it), RETRYING, FAILED or STOPPED."""
        self.error: Exception | None = None
        """Why it is RETRYING, WAITING or FAILED."""

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> bool:
        """Publishes what was read, and ends; returns whether it ended in time. What is left is for the next start."""
        self._supervisor.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def __enter__(self) -> EmbeddedPipeline:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def healthy(self) -> bool:
        """Whether it publishes."""
        return self._thread.is_alive() and self.state == RUNNING

    @property
    def position(self) -> Position | None:
        """The position that Kafka has stored last."""
        return self._supervisor.stored()

    def metrics(self) -> dict[str, Any]:
        """Returns the values of the pipeline's metrics (docs/metrics.md)."""
        return self._supervisor.metrics.snapshot()

    def _run(self) -> None:
        try:
            self._supervisor.run()
        except Exception as error:  # noqa: BLE001 - the service sees it in `error`
            self._note(FAILED, error)
        else:
            self._note(STOPPED, None)

    def _note(self, state: str, error: Exception | None) -> None:
        self.state, self.error = state, error


@dataclass(frozen=True, slots=True)
class EmbeddedWiring(Wiring):
    """The parts of a pipeline with an embedded outbox. Everything but the source is as in every pipeline."""

    @property
    def _options(self) -> EmbeddedOptions:
        return cast(EmbeddedOptions, self.database)

    def source(self, wakeup: Wakeup, until: Callable[[], Position | None] = lambda: None) -> RowSource:
        options = self._options
        return EmbeddedSource(options.outbox, self.settings.pipeline, wakeup=wakeup, adopt=options.adopt)

    def check_start(self, stored: Position | None) -> None:
        options = self._options
        EmbeddedSource(options.outbox, "", wakeup=Wakeup(), adopt=options.adopt).check_start(stored)

    def check_same_log(self, stored: Position | None) -> None:
        """Does nothing: `check_start` compares the identity of the outbox."""

    def require_position_known(self, admin: Admin, *, ran: bool) -> None:
        if ran:
            require_stored(self.kafka, admin)
        elif not self._options.adopt:
            require_position_known(self.kafka, admin)

    def probe(self, error: TailraceError) -> ServerProbe | None:
        return None if isinstance(error, SourceUnavailable) else Wiring.probe(self, error)


def _require_same_folder(settings: PipelineSettings, outbox: EmbeddedOutbox) -> None:
    named = settings.source.rocksdb
    if named is None or named.resolve() != outbox.path.resolve():
        raise ConfigError(
            f"the pipeline {settings.pipeline} does not read the outbox {outbox.path}",
            why=f"source.rocksdb is {named}." if named else "It has no source.rocksdb.",
            remedy=f"Set source.rocksdb: {outbox.path.resolve()}.",
        )
    if not outbox.enabled:
        raise ConfigError(f"the outbox {outbox.path} is not enabled", remedy="Start no pipeline for it.")
