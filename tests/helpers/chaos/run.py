"""Runs a schedule: chapter by chapter, three lanes at a time, and after each chapter everything must have recovered."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Message

from helpers.chaos import data_faults, process_faults, server_faults
from helpers.chaos.comparison import Published, check_pipeline, expected_histories
from helpers.chaos.schedule import Lane, PlannedFault, as_json, plan
from helpers.chaos.world import Pipeline, ProjectionApp, World
from tailrace.testkit.oracle import ConsumedRecord, OracleVerdict, ProjectionComparison, check_projection
from tailrace.testkit.stack import StackError, wait_until
from tailrace.testkit.topic_reader import RecordReader, consumed_records, header, read_all

RECOVERY_SECONDS = 180
INJECTORS: Mapping[str, Callable[[World, PlannedFault], str]] = {
    "kill": process_faults.kill,
    "suspend": process_faults.suspend,
    "stop": process_faults.stop,
    "second instance": process_faults.second_instance,
    "kill server": server_faults.kill_server,
    "stop server": server_faults.stop_server,
    "hang server": server_faults.hang_server,
    "end walsender": server_faults.end_walsender,
    "step down": server_faults.step_down,
    "cut": server_faults.cut,
    "cut after bytes": server_faults.cut_after_bytes,
    "refuse": server_faults.refuse,
    "blackhole": server_faults.blackhole,
    "half-open": server_faults.half_open,
    "slow": server_faults.slow,
    "bad payloads": data_faults.bad_payloads,
    "redrive": data_faults.redrive,
    "replay": data_faults.replay,
    "add column": data_faults.add_column,
    "lower topic limit": data_faults.lower_topic_limit,
    "delete old rows": data_faults.delete_old_rows,
    "truncate": data_faults.truncate,
    "grow topic": data_faults.grow_topic,
}


class ChaosError(Exception):
    """A guarantee was broken, something did not recover, or a fault did not happen."""


@dataclass
class Report:
    """The result of a run, as it is stored."""

    seed: int
    minutes: float
    schedule: list[dict[str, object]]
    faults: Counter[str] = field(default_factory=Counter)
    injected: list[dict[str, object]] = field(default_factory=list)
    chapters: list[dict[str, object]] = field(default_factory=list)
    pipelines: dict[str, dict[str, Any]] = field(default_factory=dict)
    projections: dict[str, dict[str, Any]] = field(default_factory=dict)
    restarted_by_supervisor: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str = ""

    @property
    def events_compared(self) -> int:
        published = sum(each["published"] + each["dead_lettered"] for each in self.pipelines.values())
        return int(published + sum(each["applied"] for each in self.projections.values()))

    def as_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "faults": dict(self.faults.most_common()),
            "faults_injected": self.faults.total(),
            "events_compared": self.events_compared,
            "passed": not self.failure,
        }


class ChaosRun:
    """One run. `say` gets a line for each fault and each chapter."""

    def __init__(
        self, world: World, seed: int, minutes: float, say: Callable[[str], None], *, limit: float | None = None
    ) -> None:
        """After `limit` seconds no other chapter begins, on a machine that is slower than planned."""
        self.world = world
        self._limit = limit
        self.chapters = plan(seed, minutes)
        self.report = Report(seed, minutes, as_json(self.chapters))
        self._say = say
        self._failed = threading.Event()
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def run(self) -> Report:
        try:
            self.world.start()
            with Readers(self.world) as readers:
                for number, faults in enumerate(self.chapters):
                    if self._limit is not None and time.monotonic() - self._began > self._limit:
                        break
                    self._chapter(number, faults, readers)
                for pipeline in self.world.pipelines:
                    for writer in pipeline.service.writers:
                        writer.stop()
                self._compare(readers)
        except BaseException as error:
            self.report.failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.report.seconds = round(time.monotonic() - self._began, 1)
            self.report.restarted_by_supervisor = {
                target.name: target.ended_by_itself for target in self.world.targets.values()
            }
        return self.report

    def _chapter(self, number: int, faults: list[PlannedFault], readers: Readers) -> None:
        began = time.monotonic()
        errors: list[BaseException] = []
        calm = [fault for fault in faults if fault.kind == "grow topic"]
        lanes = [[each for each in faults if each.lane == lane.value and each not in calm] for lane in Lane]
        threads = [threading.Thread(target=self._lane, args=(lane, began, errors), daemon=True) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        chaos_seconds = time.monotonic() - began
        self.world.restore()
        for target in self.world.targets.values():
            target.await_ready()
        with self.world.orders.paused(), self.world.users.paused():
            self._recover(readers)
            recovery = time.monotonic() - began - chaos_seconds
            self._compare(readers)
            for fault in calm:
                self._inject(fault)
        found = {name: each["published"] for name, each in self.report.pipelines.items()}
        self.report.chapters.append(
            {"chapter": number, "seconds": round(chaos_seconds, 1), "recovery_seconds": round(recovery, 1), **found}
        )
        self._say(f"chapter {number}: {len(faults)} faults, recovered after {recovery:.1f} s; published {found}, clean")

    def _lane(self, faults: Iterable[PlannedFault], began: float, errors: list[BaseException]) -> None:
        try:
            for fault in faults:
                if self._failed.wait(max(0.0, began + fault.at - time.monotonic())):
                    return
                self._inject(fault)
        except BaseException as error:  # noqa: BLE001 - raised by the chapter
            errors.append(error)
            self._failed.set()

    def _inject(self, fault: PlannedFault) -> None:
        at = time.monotonic() - self._began
        try:
            detail = INJECTORS[fault.kind](self.world, fault)
        except BaseException as error:
            raise ChaosError(f"{fault} at {at:.1f} s: {type(error).__name__}: {error}") from error
        took = time.monotonic() - self._began - at
        with self._lock:
            if not detail.startswith("not injected"):
                self.report.faults[f"{fault.kind} ({fault.target})"] += 1
            self.report.injected.append(
                {"at": round(at, 1), "seconds": round(took, 1), "kind": fault.kind, "target": fault.target,
                 "detail": detail}
            )  # fmt: skip
        self._say(f"{at:7.1f} s  {fault.kind} ({fault.target}) {detail}, {took:.1f} s")

    def _recover(self, readers: Readers) -> None:
        """Waits until everything committed is published and applied. Only the writers are paused."""
        world = self.world
        for pipeline in world.pipelines:
            pipeline.remember_outbox()
            self._until(
                lambda pipeline=pipeline: not readers.verdict(pipeline).missing,  # type: ignore[misc]
                lambda pipeline=pipeline: str(readers.verdict(pipeline)),  # type: ignore[misc]
                f"the events of {pipeline.name}",
            )
        for projection in world.projections:
            for pipeline in world.pipelines:
                self._until(
                    lambda a=projection, b=pipeline: readers.projected(a, b).ok,  # type: ignore[misc]
                    lambda a=projection, b=pipeline: _short(readers.projected(a, b)),  # type: ignore[misc]
                    f"{projection.name} of {pipeline.name}",
                )

    def _until(self, done: Callable[[], bool], shown: Callable[[], str], what: str) -> None:
        def checked() -> bool:
            for target in self.world.targets.values():
                target.require_running()
            return done()

        try:
            wait_until(checked, RECOVERY_SECONDS, what=what)
        except StackError as error:
            raise ChaosError(f"{error}: {shown()}") from error

    def _compare(self, readers: Readers) -> None:
        """Compares everything since the start; raises ChaosError if a guarantee was broken."""
        wrong = []
        for pipeline in self.world.pipelines:
            verdict = readers.verdict(pipeline)
            verdict.positions = pipeline.service.wrong_positions()
            replayed = len(readers.published(pipeline).replayed)
            summary = {**verdict.summary(), "replayed": replayed, "redriven": len(pipeline.redriven)}
            self.report.pipelines[pipeline.name] = summary
            if not verdict.ok:
                wrong.append(f"{pipeline.name}: {verdict}")
            wrong += [f"{pipeline.name}: a writer has ended: {each.error!r}" for each in pipeline.failed_writers]
            if pipeline.ended_by_itself:
                wrong.append(f"{pipeline.name}: the connector ended by itself: {pipeline.ended_by_itself}")
            if replayed != pipeline.replayed:
                wrong.append(f"{pipeline.name}: {replayed} replayed records, expected {pipeline.replayed}")
        for projection in self.world.projections:
            for pipeline in self.world.pipelines:
                comparison = readers.projected(projection, pipeline)
                name = f"{projection.name} of {pipeline.name}"
                self.report.projections[name] = {"events": comparison.events, "applied": comparison.applied}
                if not comparison.ok:
                    wrong.append(f"{name}: {_short(comparison)}")
            letters = read_all(self.world.kafka.direct_bootstrap, [projection.dead_letters])
            if letters:
                wrong.append(f"{projection.name}: {len(letters)} dead letters")
        if wrong:
            raise ChaosError("\n".join(wrong))


class Readers:
    """Reads the topics on, and compares all that was read so far."""

    def __init__(self, world: World) -> None:
        self.world = world
        bootstrap = world.kafka.direct_bootstrap
        self._events = {each.name: RecordReader(bootstrap, [each.service.topic]) for each in world.pipelines}
        self._letters = {each.name: RecordReader(bootstrap, [each.service.letters]) for each in world.pipelines}

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in (*self._events.values(), *self._letters.values()):
            reader.__exit__()

    def published(self, pipeline: Pipeline) -> Published:
        found = Published()
        messages = self._events[pipeline.name].more()
        for message, record in zip(messages, consumed_records(messages), strict=True):
            replay = header(message, "tailrace.replay")
            if replay:
                found.replayed.append((replay, record))
            else:
                found.first.append(record)
        return found

    def verdict(self, pipeline: Pipeline) -> OracleVerdict:
        return check_pipeline(
            pipeline.written, self.published(pipeline), dead_lettered(self._letters[pipeline.name].more()),
            in_table=pipeline.seen_in_outbox, redriven=pipeline.redriven, growths=pipeline.growths,
        )  # fmt: skip

    def projected(self, projection: ProjectionApp, pipeline: Pipeline) -> ProjectionComparison:
        expected = expected_histories(pipeline.written, self.published(pipeline).first)
        return check_projection(expected, projection.histories(pipeline.service.topic))


def dead_lettered(messages: Sequence[Message]) -> list[ConsumedRecord]:
    """Returns dead letters by the id of their event. That of an unreadable document is in the document."""
    return [
        record if record.id else record._replace(id=json.loads(json.loads(message.value())["document"])["event_id"])
        for message, record in zip(messages, consumed_records(messages), strict=True)
    ]


def _short(comparison: ProjectionComparison) -> str:
    lists = {"missing", "twice", "phantom", "out_of_order"}
    parts = {name: getattr(comparison, name) for name in sorted(lists)}
    counts = ", ".join(f"{name} {len(found)} {found[:3]}" for name, found in parts.items() if found)
    return f"{comparison.applied} of {comparison.events} applied; {counts}"


def store(report: Report, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report.as_json(), indent=1) + "\n")
