"""Runs all checks of `tailrace check`: settings, servers, and whether a start would resume at the stored position.

Nothing is changed: no topic, slot, publication or collection is created, and no Kafka transaction is begun, because
that would fence a running pipeline. An unavailable server is one result, and the other checks still run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tailrace.check.kafka import KafkaChecks
from tailrace.check.postgres import PostgresChecks
from tailrace.check.result import CheckResult, State, failed, ok, warn
from tailrace.check.rules import check_rules
from tailrace.config.dead_letters import reasons_with
from tailrace.config.load import load_pipeline
from tailrace.config.model import PipelineSettings
from tailrace.dlq.parking import ParkingLimits
from tailrace.errors import ConfigError, SchemaError, TailraceError
from tailrace.positions.base import Position
from tailrace.routing.folder import load_topics
from tailrace.routing.router import Router
from tailrace.routing.specs import TopicSpec
from tailrace.schemas.folder import load_folder
from tailrace.sources.mongo.options import MongoOptions
from tailrace.worker.options import column_map, declared_for, kafka_options, routing_view, source_options
from tailrace.worker.pipeline_topics import read_known
from tailrace.worker.rules import PipelineRules
from tailrace.worker.schemas import PipelineSchemas


class DatabaseChecks(Protocol):
    """The checks of a source database."""

    needed_checks: frozenset[str]
    """The names of checks that must pass before `start` is worth checking."""
    stores_position: bool
    """Whether the server itself stores a position (a slot), which shows that the pipeline has run before."""

    @property
    def reachable(self) -> bool:
        """Whether it answered `checks`."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns of the outbox that `checks` found; empty if unknown."""

    def checks(self) -> list[CheckResult]: ...

    def start(self, stored: Position | None) -> CheckResult:
        """Reports where a start would resume; raises the error with which it would fail."""

    def is_read_at(self, position: Position) -> bool:
        """Whether the position of another pipeline is in the log of this outbox. Needs `start` first."""


Probe = Callable[[], list[CheckResult]]


def preflight(file: Path, *, offline: bool = False) -> list[CheckResult]:
    """Returns all results, in the order in which a start would find the problems."""
    try:
        settings = load_pipeline(file)
    except ConfigError as error:
        return [failed("settings", error)]
    checks = Preflight(settings, file)
    return checks.files() if offline else [*checks.files(), *checks.servers()]


class Preflight:
    """The checks of one pipeline. Call `files` before `servers`, which fills `database` and `kafka`."""

    def __init__(self, settings: PipelineSettings, file: Path) -> None:
        self._settings = settings
        self._file = file
        self.specs: list[TopicSpec] = []
        self.database: DatabaseChecks | None = None
        self.kafka: KafkaChecks | None = None

    def files(self) -> list[CheckResult]:
        """Checks what needs no server."""
        settings = self._settings
        self.specs, topics = _topics(settings)
        found = ok("settings", f"pipeline {settings.pipeline} in {self._file}")
        return [found, _schemas(settings), *_rules(settings), *topics]

    def servers(
        self, bounded: Callable[[str, Probe], list[CheckResult]] = lambda _, probe: probe()
    ) -> list[CheckResult]:
        """Checks the servers. `bounded` runs a probe, which it may end with a result of its own."""
        settings = self._settings
        try:
            database = self.database = _database(settings)
        except ConfigError as error:
            return [failed("source", error)]
        kafka = self.kafka = _kafka_checks(settings, self.specs)
        checks = bounded("the registry", lambda: _registry(settings))
        checks += bounded("the database", database.checks)
        view = routing_view(settings.pipeline, column_map(settings))
        checks += check_rules(self.specs, view, database.columns)
        checks += bounded("Kafka", kafka.checks)
        if database.reachable and kafka.reachable:
            before = list(checks)
            checks += bounded("the start", lambda: _start(database, kafka, before))
            checks += bounded("other pipelines", lambda: _other_pipelines(settings, self.specs, database))
        return checks


def passed(checks: list[CheckResult]) -> bool:
    return all(check.state is not State.FAIL for check in checks)


def _schemas(settings: PipelineSettings) -> CheckResult:
    schemas = settings.schemas
    if schemas is None:
        return ok("schemas", "none: payloads are published without validation")
    if schemas.folder is None:
        return ok("schemas", f"in the registry at {schemas.registry.url if schemas.registry else '?'}")
    try:
        compiled_schemas = list(load_folder(schemas.folder))
    except SchemaError as error:
        return failed("schemas", error)
    if not compiled_schemas and schemas.unknown == "dead_letter":
        found = f"{schemas.folder} is empty: every event would be a dead letter"
        return CheckResult("schemas", State.WARN, found, "Add <event type>/1.json, or set schemas.unknown: pass.")
    return ok("schemas", f"{len(compiled_schemas)} in {schemas.folder}")


def _rules(settings: PipelineSettings) -> list[CheckResult]:
    """Whether all business rules can be loaded."""
    checks = settings.rules.checks
    if not checks:
        return []
    rules = PipelineRules(settings.rules)
    try:
        rules.ready()
    except ConfigError as error:
        return [failed("rules", error)]
    finally:
        rules.close()
    names = {name for each in checks.values() for name in each}
    return [ok("rules", f"{len(names)} rules for events of {', '.join(checks)}")]


def _registry(settings: PipelineSettings) -> list[CheckResult]:
    """Whether the registry answers and has the schemas of the folder."""
    registry = settings.schemas.registry if settings.schemas else None
    if registry is None:
        return []
    from tailrace.worker.registry import registry_client

    try:
        with registry_client(registry) as client:
            subjects = client.subjects()
        if settings.schemas and settings.schemas.folder:
            PipelineSchemas(settings, warn=lambda _: None).ready()
    except TailraceError as error:
        return [failed("registry", error)]
    return [ok("registry", f"{len(subjects)} subjects at {registry.url}")]


def _topics(settings: PipelineSettings) -> tuple[list[TopicSpec], list[CheckResult]]:
    topics = settings.topics
    try:
        view = routing_view(settings.pipeline, column_map(settings))
        specs = load_topics(topics.folder, view) if topics.folder else []
        Router(specs, topics.template, view=view)
    except ConfigError as error:
        return [], [failed("topics", error)]
    parts = [f"{len(specs)} in {topics.folder}"] if topics.folder else []
    parts += [f"template {topics.template}"] if topics.template else []
    return specs, [ok("topics", ", ".join(parts))]


def _kafka_checks(settings: PipelineSettings, specs: list[TopicSpec]) -> KafkaChecks:
    topics, letters = settings.topics, settings.dead_letters
    parks = reasons_with("park", settings.on_invalid, letters)
    return KafkaChecks(
        kafka_options(settings),
        specs,
        TopicSpec(topics.template or "", topics.partitions, topics.replication),
        create=topics.create,
        payload_bytes=settings.limits.payload_bytes,
        park=ParkingLimits(letters.park_keys, letters.park_hours) if parks else None,
    )


def _database(settings: PipelineSettings) -> DatabaseChecks:
    columns = column_map(settings)
    options = source_options(settings, columns)
    if isinstance(options, MongoOptions):
        from tailrace.check.mongo import MongoChecks  # the driver is an optional dependency

        return MongoChecks(options, columns, row_marks=settings.marks == "rows")
    return PostgresChecks(options, columns, settings.outbox.layout)


def _other_pipelines(settings: PipelineSettings, specs: list[TopicSpec], database: DatabaseChecks) -> list[CheckResult]:
    """Finds other pipelines that publish the same events to the same topics: consumers would get them twice."""
    topics = declared_for(settings.pipeline, specs)
    try:
        known = read_known(kafka_options(settings))
    except TailraceError as error:
        return [failed("other pipelines", error)]
    checks: list[CheckResult] = []
    for name, position in sorted(known.positions.items()):
        shared = known.shared_with(name, topics, settings.topics.template) if database.is_read_at(position) else []
        if shared:
            checks.append(
                warn(
                    "other pipelines",
                    f"{name} reads the same outbox and publishes to the same topics ({', '.join(shared[:3])}): "
                    "consumers get every event twice, with the same id",
                    f"Run only one of them, or use other topics here. Ignore this if {name} was removed, or if their "
                    "rules select different events.",
                )
            )
    return checks


def _start(database: DatabaseChecks, kafka: KafkaChecks, before: list[CheckResult]) -> list[CheckResult]:
    """Checks whether a start would resume; skipped after a failed check that it depends on, so a cause appears once."""
    needed = database.needed_checks | {"offsets topic"}
    if any(check.state is State.FAIL and check.name in needed for check in before):
        return []
    try:
        # Read between the slot and the end of the log: in this order, a pipeline that runs at the same time cannot make
        # them look contradictory.
        stored = kafka.stored()
        if stored is None and not database.stores_position:
            kafka.require_position_known()
        return [database.start(stored)]
    except TailraceError as error:
        return [failed("start", error)]
