"""`tailrace check`: the settings, the servers, and whether the stored position and the slot fit together.

Everything a start would refuse is found here first, and nothing is changed: no topic, slot or publication is made,
and no transaction is begun, since beginning one would fence a pipeline that runs. A server that is away is one
finding; the rest is still looked at.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tailrace.config.load import load_pipeline
from tailrace.config.model import Pipeline as Settings
from tailrace.errors import ConfigError, SchemaError, TailraceError
from tailrace.position import LogIdentity, Position
from tailrace.routing.folder import load_topics
from tailrace.routing.router import Router
from tailrace.routing.specs import TopicSpec
from tailrace.schemas.folder import load_folder
from tailrace.sources.postgres import slot as catalogue
from tailrace.sources.postgres.admission import Step, admit
from tailrace.sources.postgres.link import Link
from tailrace.sources.postgres.source import PostgresOptions
from tailrace.worker.assembly import column_map, kafka_options, postgres_options, routing_view
from tailrace.worker.contracts import PipelineContracts
from tailrace.worker.findings import Check, State, failed, ok
from tailrace.worker.preflight_kafka import KafkaSide
from tailrace.worker.preflight_postgres import PostgresSide


def preflight(file: Path, *, offline: bool = False) -> list[Check]:
    """Every finding, in the order in which a start would come upon it."""
    try:
        settings = load_pipeline(file)
    except ConfigError as error:
        return [failed("settings", error)]
    specs, checks = _topics(settings)
    checks = [ok("settings", f"pipeline {settings.pipeline} in {file}"), _schemas(settings), *checks]
    if offline:
        return checks
    postgres = PostgresSide(postgres_options(settings, column_map(settings)), column_map(settings))
    kafka = _kafka_side(settings, specs)
    checks += _registry(settings)
    checks += postgres.checks()
    checks += kafka.checks()
    if postgres.reachable and kafka.reachable:
        checks += _start(settings, postgres, kafka, checks)
    return checks


def passed(checks: list[Check]) -> bool:
    return all(check.state is not State.FAIL for check in checks)


def _schemas(settings: Settings) -> Check:
    schemas = settings.schemas
    if schemas is None:
        return ok("schemas", "none: payloads are published without being checked")
    if schemas.folder is None:
        return ok("schemas", f"in the registry at {schemas.registry.url if schemas.registry else '?'}")
    try:
        contracts = list(load_folder(schemas.folder))
    except SchemaError as error:
        return failed("schemas", error)
    if not contracts and schemas.unknown == "dead_letter":
        found = f"{schemas.folder} is empty: every event would be a dead letter"
        return Check("schemas", State.WARN, found, "Add <event type>/1.json, or set schemas.unknown: pass.")
    return ok("schemas", f"{len(contracts)} in {schemas.folder}")


def _registry(settings: Settings) -> list[Check]:
    """Whether the registry answers, and knows what the folder holds."""
    registry = settings.schemas.registry if settings.schemas else None
    if registry is None:
        return []
    from tailrace.worker.registry import registry_client

    try:
        with registry_client(registry) as client:
            subjects = client.subjects()
        if settings.schemas and settings.schemas.folder:
            PipelineContracts(settings, warn=lambda _: None).ready()
    except TailraceError as error:
        return [failed("registry", error)]
    return [ok("registry", f"{len(subjects)} subjects at {registry.url}")]


def _topics(settings: Settings) -> tuple[list[TopicSpec], list[Check]]:
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


def _kafka_side(settings: Settings, specs: list[TopicSpec]) -> KafkaSide:
    topics = settings.topics
    return KafkaSide(
        kafka_options(settings),
        specs,
        TopicSpec(topics.template or "", topics.partitions, topics.replication),
        create=topics.create,
        payload_bytes=settings.limits.payload_bytes,
    )


def _start(settings: Settings, postgres: PostgresSide, kafka: KafkaSide, before: list[Check]) -> list[Check]:
    """What a start would decide. Only asked when its ground is sound: one cause, one finding."""
    if not postgres.may_replicate or any(c.state is State.FAIL and c.name in _GROUND for c in before):
        return []
    try:
        # After the slot, which is at hand already, and before the end of the log: in this order a pipeline that
        # runs meanwhile cannot make the three look contradictory.
        stored = kafka.stored()
        return [_admission(postgres_options(settings, column_map(settings)), stored, postgres)]
    except TailraceError as error:
        return [failed("start", error)]


_GROUND = {"wal_level", "table", "publication", "slot", "offsets topic"}


def _admission(options: PostgresOptions, stored: Position | None, postgres: PostgresSide) -> Check:
    timeout = min(options.link_timeout, 10)
    with (
        Link(options.conninfo, replication=True, timeout=timeout) as replication,
        Link(options.conninfo, replication=False, timeout=timeout) as control,
    ):
        server = catalogue.identify(replication)
        if stored is None and postgres.slot is None:
            return ok("start", "a first start: nothing is stored, the slot is to be created")
        published = catalogue.read_published(control, options.publication, options.table).fingerprint
    found = LogIdentity(server.system_id, server.timeline, server.database, options.slot, options.table, published)
    slot = postgres.slot
    busy = slot is not None and slot.active_pid is not None
    if slot is not None and stored is not None:
        # That the pipeline runs already is no objection; whether it could start again still is of interest.
        slot = replace(slot, active_pid=None)
    admission = admit(stored, found, slot, server_lsn=server.lsn, adopt=False)
    if admission.step is not Step.STREAM:
        return ok("start", f"an interrupted first start: Tailrace is going to {admission.step.value}")
    return ok("start", f"{'runs now' if busy else 'goes on'} at the stored position {stored}")
