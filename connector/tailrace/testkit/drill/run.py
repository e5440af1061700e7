"""Runs a drill: prepares the scratch pipeline, injects one fault after another, and compares after each."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tailrace.config.load import load_pipeline, read_settings, validate_settings
from tailrace.config.model import PipelineSettings
from tailrace.errors import ConfigError
from tailrace.positions.postgres import LsnPosition, format_lsn
from tailrace.testkit.drill.instances import MODULE, Instance, write_job
from tailrace.testkit.drill.outbox import MIX, open_outbox
from tailrace.testkit.drill.plan import DrillPlan, plan_drill, scratch_settings, write_schemas
from tailrace.testkit.drill.steps import START, START_SECONDS, STEPS, Step, StepError
from tailrace.testkit.drill.topics import DrillTopics
from tailrace.testkit.oracle import OracleVerdict, backward_positions, check_delivery
from tailrace.testkit.stack.waiting import StackError, wait_until
from tailrace.testkit.workload.writer import Mix, WorkloadWriter

RECOVERY_SECONDS = 180.0
MISSING_SECONDS = 30.0
"""How long an event may be missing after a later one was published."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What happened in a step. `recovery_seconds`: from the fault to the first event that was committed after it."""

    step: str
    text: str
    detail: str
    recovery_seconds: float
    verdict: Mapping[str, Any]
    ok: bool


@dataclass
class DrillResult:
    pipeline: str
    database: str
    kafka: str
    delivery: str
    steps: list[StepResult] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(step.ok for step in self.steps)

    def as_json(self) -> dict[str, Any]:
        steps = [{name: getattr(step, name) for name in StepResult.__slots__} for step in self.steps]
        return {**vars(self), "steps": steps, "ok": self.ok}


class Drill:
    """A drill of one pipeline file. Use it as a context: it removes everything at its end."""

    def __init__(
        self,
        file: Path,
        *,
        rate: float,
        hold: float,
        seed: int,
        program: Sequence[str] = MODULE,
        patience: float = MISSING_SECONDS,
    ) -> None:
        """`rate`: transactions a second. `hold`: how long a fault lasts. `program`: what runs as the connector."""
        self.settings = load_pipeline(file)
        self.plan: DrillPlan = plan_drill(self.settings)
        self.hold = hold
        self._rate = rate
        self._seed = seed
        self._patience = patience
        self._file = file
        self._program = program
        self._closing = ExitStack()
        self._folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-drill-")))
        self._data = scratch_settings(read_settings(file), self.plan, self._folder)
        self._base = file.absolute().parent
        self._job = Path()
        self.outbox = open_outbox(self.settings, self.plan)
        self.topics = DrillTopics(self._scratch(), self.plan)
        self._instances: list[Instance] = []
        self._writers: list[WorkloadWriter] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        finally:
            self._closing.close()

    def end(self) -> None:
        """Ends writers and connectors."""
        with ExitStack() as ending:
            ending.callback(self.topics.close)
            for instance in self._instances:
                ending.callback(instance.close)
            for writer in self._writers:
                ending.callback(_end, writer)

    @property
    def instance(self) -> Instance:
        return self._instances[-1]

    @instance.setter
    def instance(self, instance: Instance) -> None:
        self._instances.remove(instance)
        self._instances.append(instance)

    def result(self) -> DrillResult:
        kafka = self.settings.kafka
        return DrillResult(self.plan.name, self.outbox.server, kafka.bootstrap, kafka.delivery)

    def clean(self) -> list[str]:
        """Removes what this or an earlier drill has left; returns what was there."""
        return [*self.outbox.remove(), *self.topics.remove()]

    def run(
        self, on_begin: Callable[[Step], None], on_step: Callable[[StepResult], None], names: Collection[str] = ()
    ) -> DrillResult:
        """Runs the steps with these names, or all. First removes what an earlier drill has left.

        It leaves what it creates to `clean`.
        """
        result = self.result()
        self.clean()
        self.outbox.create()
        write_schemas(self._folder)
        self._job = write_job(self._folder, self._data, self._base, self.topics.addresses())
        for step in [START, *self.steps(names)]:
            on_begin(step)
            found = self._step(step)
            result.steps.append(found)
            on_step(found)
            if not found.ok:
                break
        return result

    def steps(self, names: Collection[str] = ()) -> list[Step]:
        """Returns the steps that this pipeline's database has."""
        found = [step for step in STEPS if not (step.postgres_only and self.plan.is_mongo)]
        if unknown := set(names) - {step.name for step in found}:
            raise ConfigError(
                f"there is no step {', '.join(sorted(unknown))} for this pipeline",
                remedy=f"Choose from {', '.join(step.name for step in found)}.",
            )
        return [step for step in found if not names or step.name in names]

    def _step(self, step: Step) -> StepResult:
        try:
            detail = step.inject(self)
            seconds = self._recover()
        except (StepError, StackError) as error:
            why = f"{error.what}\n{error.why or self.instance.log_tail()}"
            return StepResult(step.name, step.text, why, 0.0, self._verdict().summary(), ok=False)
        verdict = self._verdict(wait=True)
        return StepResult(step.name, step.text, detail, round(seconds, 2), verdict.summary(), self._accepts(verdict))

    def _recover(self) -> float:
        """Waits until events that are committed from now on are published; returns the seconds until the first."""
        began = time.monotonic()
        known = len(self._written())
        wait_until(
            lambda: len(self._written()) > known, RECOVERY_SECONDS, what="an event that is committed after the fault"
        )
        first: list[float] = []

        def complete() -> bool:
            if not self.instance.running:
                raise StepError(
                    f"the connector ended by itself with exit code {self.instance.exit_code}",
                    why=self.instance.log_tail(),
                )
            read = {record.id for record in self.topics.published()}
            after = [event for event in self._written()[known:] if event.valid]
            if not first and any(event.id in read for event in after):
                first.append(time.monotonic() - began)
            return bool(first)

        wait_until(complete, RECOVERY_SECONDS, what="an event that was committed after the fault, on its topic")
        return first[0]

    def _verdict(self, *, wait: bool = False) -> OracleVerdict:
        """Compares everything that was written until now, and the positions. Waits for events that are on their way."""
        written = self._written()
        try:
            wait_until(lambda: not self._compare(written).missing, self._patience if wait else 0, what="all events")
        except StackError:
            pass  # they are missing, as the verdict says
        verdict = self._compare(written)
        # The slot first: a confirmed position must have been stored before.
        confirmed = self.outbox.confirmed()
        positions = self.topics.positions()
        verdict.positions = backward_positions([position.progress for position in positions])
        last = positions[-1] if positions else None
        if isinstance(last, LsnPosition) and confirmed is not None and confirmed > last.lsn:
            verdict.positions.append(f"the slot is confirmed to {format_lsn(confirmed)}, stored is {last}")
        return verdict

    def _compare(self, written: Sequence[Any]) -> OracleVerdict:
        ids = {event.id for event in written}
        published = self.topics.published()
        letters = self.topics.dead_lettered()
        # Events that were written after `written` was read are not phantoms.
        later = {event.id for event in self._written()} - ids
        return check_delivery(
            written,
            [record for record in published if record.id not in later],
            [record for record in letters if record.id not in later],
            in_table=self.outbox.in_outbox(),
        )

    def _accepts(self, verdict: OracleVerdict) -> bool:
        """Returns whether the guarantees of the pipeline's delivery mode hold."""
        if self.settings.kafka.delivery == "at_least_once":
            return not (verdict.missing or verdict.phantom or verdict.misplaced or verdict.positions)
        return verdict.ok

    def _written(self) -> list[Any]:
        return [event for writer in self._writers for event in list(writer.written)]

    def start_writing(self) -> None:
        self.new_writer(MIX).start(rate=self._rate)

    def new_writer(self, mix: Mix) -> WorkloadWriter:
        writer = self.outbox.writer(self._seed * 100 + len(self._writers), mix)
        self._writers.append(writer)
        return writer

    def launch(self) -> Instance:
        instance = Instance(self._job, self._program)
        self._instances.insert(max(0, len(self._instances) - 1), instance)
        return instance

    def start_instance(self) -> None:
        """Starts a connector; returns when it streams."""
        self._instances.append(Instance(self._job, self._program))
        self.await_running()

    def await_running(self) -> None:
        instance = self.instance

        def running() -> bool:
            if not instance.running:
                raise StepError(f"the connector ended with exit code {instance.exit_code}", why=instance.log_tail())
            return bool(instance.events("running"))

        wait_until(running, START_SECONDS, what="the start of the connector")

    def _scratch(self) -> PipelineSettings:
        """Returns the settings of the scratch pipeline; its folder of schemas is written later."""
        (self._folder / "schemas").mkdir()
        settings, problems = validate_settings(self._data, self._base, os.environ)
        if settings is None:
            raise ConfigError("the scratch pipeline has no valid settings", why="; ".join(map(str, problems)))
        return settings


def _end(writer: WorkloadWriter) -> None:
    """Ends a writer; its errors do not matter any more."""
    try:
        writer.stop()
    except Exception:  # noqa: BLE001, S110 - the drill has ended
        pass
