"""Examines one pipeline: everything of `tailrace check`, then the facts and rules of `tailrace doctor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tailrace.check.doctor.access_rules import check_access
from tailrace.check.doctor.bounded import bounded
from tailrace.check.doctor.coverage import Coverage, CoverageContext, PipelineSteps, check_coverage, cover
from tailrace.check.doctor.event_sample import EventSample, sample_rows
from tailrace.check.doctor.kafka_facts import read_access, read_kafka_facts, topics_of
from tailrace.check.doctor.kafka_rules import check_kafka_facts
from tailrace.check.doctor.outbox_facts import read_outbox_facts
from tailrace.check.doctor.outbox_rules import IndexUse, check_outbox
from tailrace.check.doctor.postgres_facts import read_only, read_postgres_facts
from tailrace.check.doctor.postgres_rules import check_postgres
from tailrace.check.doctor.registry_findings import check_registry, read_registry
from tailrace.check.doctor.report import Diagnosis
from tailrace.check.doctor.worker_rules import PipelineIdentity
from tailrace.check.kafka import KafkaChecks
from tailrace.check.kafka_commands import tool
from tailrace.check.preflight import Preflight
from tailrace.check.result import CheckResult, failed
from tailrace.config.load import load_pipeline
from tailrace.config.model import PipelineSettings
from tailrace.errors import ConfigError
from tailrace.outbox.layouts import ColumnMap
from tailrace.routing.router import Router
from tailrace.routing.specs import TopicSpec
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.postgres.connection import server_name
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.worker.options import (
    column_map,
    declared_for,
    kafka_options,
    layout_of,
    own_topics,
    routing_view,
    source_options,
)
from tailrace.worker.schemas import KEY_SUFFIX, PipelineSchemas

Tell = Callable[[str], None]
"""Reports what is checked now."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A pipeline's findings, and what it must not share with others; None if its settings cannot be used.

    `folders` are folders of this machine that it writes to, with their purpose.
    """

    diagnosis: Diagnosis
    identity: PipelineIdentity | None = None
    folders: Mapping[Path, str] = field(default_factory=dict)


def examine(file: Path, tell: Tell) -> Examined:
    """Checks one pipeline."""
    try:
        settings = load_pipeline(file)
    except ConfigError as error:
        return Examined(Diagnosis(file.stem, str(file), (failed("settings", error),)))
    examination = _Examination(settings, file, tell)
    results = examination.run()
    diagnosis = Diagnosis(settings.pipeline, str(file), tuple(results), examination.sampled)
    return Examined(diagnosis, examination.identity(), _folders(settings))


def _folders(settings: PipelineSettings) -> dict[Path, str]:
    url = settings.archive.url if settings.archive else ""
    return {Path(unquote(urlsplit(url).path)): "archive"} if url.startswith("file:") else {}


class _Examination:
    def __init__(self, settings: PipelineSettings, file: Path, tell: Tell) -> None:
        self._settings = settings
        self._file = file
        self._tell = tell
        self._columns: ColumnMap = column_map(settings)
        self._kafka = kafka_options(settings)
        self._preflight = Preflight(settings, file)
        self._source: PostgresOptions | MongoOptions | None = None
        self._coverage: Coverage | None = None
        self.sampled = ""

    def run(self) -> list[CheckResult]:
        preflight = self._preflight
        results = preflight.files()
        results += preflight.servers(self._probe)
        database, kafka = preflight.database, preflight.kafka
        if database is not None:
            self._source = source_options(self._settings, self._columns)
        if database is not None and database.reachable:
            results += self._probe("the state of the database", self._database)
            results += self._probe("the events of the outbox", self._sample)
        if kafka is not None and kafka.reachable:
            results += self._probe("the settings of Kafka", lambda: self._cluster(kafka))
        if self._coverage is not None:
            results += check_coverage(self._coverage, self._context(kafka), self.sampled)
        if self._settings.schemas is not None and self._settings.schemas.registry is not None:
            results += self._probe("the levels of the registry", self._registry)
        return results

    def identity(self) -> PipelineIdentity | None:
        settings, source = self._settings, self._source
        if source is None:
            return None
        topics = frozenset(declared_for(settings.pipeline, self._preflight.specs))
        if isinstance(source, MongoOptions):
            # Without user and password.
            server = source.uri.partition("://")[2].rpartition("@")[2].partition("/")[0]
            outbox, slot = f"{source.database}.{','.join(source.collections)}", ""
        else:
            server, outbox, slot = server_name(source.conninfo), source.table, source.slot
        template = settings.topics.template
        return PipelineIdentity(settings.pipeline, str(self._file), server, outbox, slot, topics, template)

    def _probe(self, name: str, probe: Callable[[], list[CheckResult]]) -> list[CheckResult]:
        self._tell(f"{self._settings.pipeline}: {name}")
        return bounded(name, probe)

    @property
    def _deletes(self) -> bool:
        return self._settings.retention is not None or self._settings.archive is not None

    def _database(self) -> list[CheckResult]:
        file = str(self._file)
        if isinstance(self._source, MongoOptions):
            from tailrace.check.doctor.mongo_facts import read_mongo_facts
            from tailrace.check.doctor.mongo_rules import check_mongo_facts

            uses = {use.columns: use.purpose for use in self._index_uses(self._source)}
            return check_mongo_facts(read_mongo_facts(self._source), uses, file, deletes=self._deletes)
        if self._source is None:
            return []
        with read_only(self._source) as link:
            results = check_postgres(read_postgres_facts(link, self._source), file)
            outbox = read_outbox_facts(link, self._source)
        if outbox is not None:
            results += check_outbox(outbox, self._index_uses(self._source), file, deletes=self._deletes)
        return results

    def _index_uses(self, source: PostgresOptions | MongoOptions) -> list[IndexUse]:
        settings, uses = self._settings, dict[tuple[str, ...], str]()
        if source.beginning or self._deletes:
            reader = "reading existing rows in order (start: beginning, retention, archive)"
            uses[tuple(source.order_by)] = reader
        if self._deletes and self._columns.timestamp:
            uses.setdefault((self._columns.timestamp,), "finding old rows (retention, archive)")
        if settings.marks == "rows" or (settings.retention and settings.retention.confirmations):
            uses.setdefault((self._columns.id,), "finding a row by its id (marks, confirmations)")
        return [IndexUse(columns, purpose) for columns, purpose in uses.items()]

    def _sample(self) -> list[CheckResult]:
        """Runs the steps of the pipeline on sampled events; their findings need Kafka's topics as well."""
        settings, source = self._settings, self._source
        view = routing_view(settings.pipeline, self._columns)
        router = Router(self._specs, settings.topics.template, reserved=own_topics(self._kafka), view=view)
        schemas = PipelineSchemas(settings, warn=lambda _: None)
        schemas.ready()
        found: EventSample | None = None
        if isinstance(source, MongoOptions):
            from tailrace.check.doctor.mongo_facts import sample_documents

            found = sample_documents(source)
        elif source is not None:
            with read_only(source) as link:
                found = sample_rows(link, source, self._columns, router.columns)
        if found is None:
            return []
        validate = schemas.validator().validate
        steps = PipelineSteps(layout_of(settings), router.route, validate, schemas.lookup, schemas.subject)
        self._coverage, self.sampled = cover(found.rows, steps), found.described
        return []

    @property
    def _specs(self) -> list[TopicSpec]:
        return self._preflight.specs

    def _context(self, kafka: KafkaChecks | None) -> CoverageContext:
        settings = self._settings
        folder = settings.schemas.folder if settings.schemas else None
        return CoverageContext(
            file=str(self._file),
            schemas_folder=str(folder) if folder else None,
            topics_folder=str(settings.topics.folder) if settings.topics.folder else None,
            passes_unknown=settings.schemas is None or settings.schemas.unknown == "pass",
            existing_topics=set(kafka.cluster.topics) if kafka is not None and kafka.reachable else None,
            creates_topics=settings.topics.create,
            create_topic=lambda topic: tool(self._kafka, "kafka-topics", "--create", "--topic", topic),
        )

    def _cluster(self, kafka: KafkaChecks) -> list[CheckResult]:
        settings = self._settings
        declared = declared_for(settings.pipeline, self._specs)
        routed = self._coverage.topics if self._coverage else {}
        topics, missing = topics_of(kafka, self._kafka, declared, routed, settings.topics.template)
        facts = read_kafka_facts(kafka, self._kafka, self._specs, topics)
        results = check_kafka_facts(facts, self._kafka, str(self._file))
        authorized = facts.broker is None or bool(facts.broker.get("authorizer.class.name"))
        access = read_access(kafka, self._kafka, topics, missing, creates=settings.topics.create, authorized=authorized)
        return results + check_access(access, self._kafka)

    def _registry(self) -> list[CheckResult]:
        settings = self._settings
        registry = settings.schemas.registry if settings.schemas else None
        if registry is None:
            return []
        topics = self._coverage.topics if self._coverage else {}
        keyed = [*topics, *declared_for(settings.pipeline, self._specs)] if settings.format.key != "bytes" else []
        seen = self._coverage.subjects if self._coverage else set()
        subjects = {*seen, *(topic + KEY_SUFFIX for topic in keyed)}
        return check_registry(read_registry(registry, subjects), keyed, str(self._file))
