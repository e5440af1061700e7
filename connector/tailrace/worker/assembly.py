"""From settings to running parts: the one place that knows every room."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from tailrace.config.model import Pipeline as Settings
from tailrace.kafka import offsets
from tailrace.kafka.client import KafkaOptions, require_usable
from tailrace.kafka.dead_letters import dead_letter
from tailrace.kafka.publisher import Publisher
from tailrace.kafka.topics import TopicKeeper
from tailrace.outbox.layouts import DEBEZIUM, ColumnMap, Layout
from tailrace.pipeline import Line
from tailrace.routing.folder import load_topics
from tailrace.routing.router import Router
from tailrace.routing.specs import TopicSpec
from tailrace.schemas.checking import Checker
from tailrace.schemas.folder import load_folder
from tailrace.sources.postgres.source import PostgresOptions, PostgresSource
from tailrace.wake import Wake
from tailrace.wire.records import plain_record

DEAD_LETTER_RETENTION_MS = 30 * 24 * 3600 * 1000
DEAD_LETTER_BYTES = 8 * 1024 * 1024
"""Originals up to this size are kept whole in their letter; larger ones by hash and length."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """A pipeline's settings turned into what each room takes."""

    settings: Settings
    kafka: KafkaOptions
    postgres: PostgresOptions
    specs: dict[str, TopicSpec]
    line: Line

    def source(self, wake: Wake) -> PostgresSource:
        return PostgresSource(self.postgres, wake=wake)

    def adopted(self) -> Assembly:
        """The same without --adopt, which holds for one start."""
        return replace(self, postgres=replace(self.postgres, adopt=False))

    def publisher(self, wake: Wake) -> Publisher:
        """Connects to Kafka, and makes sure that the topics of our own are there and fit."""
        admin = offsets.admin_client(self.kafka)
        offsets.ensure(self.kafka, admin)
        topics = self.settings.topics
        default = TopicSpec("", topics.partitions, topics.replication)
        keeper = TopicKeeper(admin, self.specs, default, create=topics.create)
        keeper.require([*(topic for topic in self.specs), self.kafka.dead_letter_topic])
        return Publisher(self.kafka, keeper, wake=wake)


def assemble(settings: Settings, *, adopt: bool = False) -> Assembly:
    """Reads schemas and topic rules, and refuses what cannot work before any server is asked."""
    columns = column_map(settings)
    specs = load_topics(settings.topics.folder) if settings.topics.folder else []
    kafka = kafka_options(settings)
    require_usable(kafka)
    line = Line(
        layout=Layout(columns),
        check=_checker(settings).check,
        route=Router(
            specs, settings.topics.template, reserved=frozenset({kafka.offsets_topic, kafka.dead_letter_topic})
        ).route,
        record=plain_record,
        dead_letter=partial(
            dead_letter,
            letter_topic=kafka.dead_letter_topic,
            pipeline=settings.pipeline,
            limit_bytes=DEAD_LETTER_BYTES,
        ),
        halt_on_invalid=settings.on_invalid == "halt",
        batch_records=settings.limits.batch_records,
        batch_bytes=settings.limits.batch_bytes,
    )
    letters = TopicSpec(
        kafka.dead_letter_topic,
        1,
        kafka.internal_replication,
        {"retention.ms": str(DEAD_LETTER_RETENTION_MS), "max.message.bytes": str(2 * DEAD_LETTER_BYTES)},
    )
    return Assembly(
        settings,
        kafka,
        postgres_options(settings, columns, adopt=adopt),
        {spec.topic: spec for spec in (*reversed(specs), letters)},
        line,
    )


def kafka_options(settings: Settings) -> KafkaOptions:
    kafka = settings.kafka
    return KafkaOptions(
        bootstrap=kafka.bootstrap,
        pipeline=settings.pipeline,
        exactly_once=kafka.delivery == "exactly_once",
        offsets_topic=kafka.offsets_topic,
        dead_letter_topic=kafka.dead_letter_topic,
        internal_replication=kafka.internal_replication,
        settings=kafka.client_settings(),
    )


def postgres_options(settings: Settings, columns: ColumnMap, *, adopt: bool = False) -> PostgresOptions:
    source = settings.source
    return PostgresOptions(
        conninfo=source.postgres.reveal(),
        table=source.table,
        slot=source.slot,
        publication=source.publication,
        create=source.create,
        beginning=source.start == "beginning",
        order_by=source.order_by,
        timestamp=columns.timestamp,
        failover=source.failover,
        halt_on_change=source.on_change == "halt",
        link_timeout=source.link_timeout,
        adopt=adopt,
    )


def column_map(settings: Settings) -> ColumnMap:
    return replace(DEBEZIUM, **settings.outbox.columns.given())


def _checker(settings: Settings) -> Checker:
    schemas = load_folder(settings.schemas.folder) if settings.schemas else None
    unknown = settings.schemas.unknown if settings.schemas else "pass"
    return Checker(schemas, unknown=unknown, max_bytes=settings.limits.payload_bytes)
