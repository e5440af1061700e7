"""From settings to running parts: the one place that knows every room."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec

from tailrace.config.dead_letters import reasons_with
from tailrace.config.model import PipelineSettings
from tailrace.dlq.parked_keys import state_topic, waiting_topic
from tailrace.dlq.parking import Bounds, Parking
from tailrace.dlq.record import count_dead_letters, dead_letter
from tailrace.dlq.resolutions import resolutions_topic
from tailrace.errors import (
    ConfigError,
    KafkaUnavailable,
    OutcomeUnknown,
    RegistryRefused,
    RegistryUnavailable,
    SourceUnavailable,
    TailraceError,
    install_remedy,
)
from tailrace.event import OutboxEvent, Record, Route
from tailrace.kafka.client import KafkaOptions, require_usable
from tailrace.kafka.publisher import Publisher
from tailrace.kafka.tail import answering, certificate_trouble
from tailrace.kafka.topic_limits import TopicLimits
from tailrace.kafka.topic_manager import PartitionWatch, TopicManager
from tailrace.kafka.topics import partition_counts
from tailrace.outbox.layouts import ColumnMap, Layout, bookkeeping, layout_map
from tailrace.pipeline.loop import RowSource
from tailrace.pipeline.processor import EventProcessor
from tailrace.positions.base import Position
from tailrace.positions.postgres import LsnPosition
from tailrace.routing.folder import load_topics
from tailrace.routing.router import Router
from tailrace.routing.specs import TopicSpec
from tailrace.routing.view import View
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.postgres.connection import is_up
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.replay_window import ReplayWindow
from tailrace.sources.postgres.source import PostgresSource
from tailrace.sources.postgres.table_rescan import require_same_log
from tailrace.state import known_topics, offsets, position_history
from tailrace.state.offsets import Admin
from tailrace.state.position_recorder import PositionRecorder
from tailrace.state.prior_run import require_position_known, require_stored
from tailrace.state.stored_state import StoredState
from tailrace.wakeup import Wakeup
from tailrace.worker.alerts import Alerts
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.outage import Probe, listens
from tailrace.worker.schemas import PipelineSchemas
from tailrace.worker.webhook import WebhookOptions

DAY_MS = 24 * 3600 * 1000
PROOF_SECONDS = 10.0
"""How long an instance that waits may look at the log: it is to take over within seconds when the other one ends."""
REQUIRED = ("id", "type", "aggregate", "key", "payload")
"""Parts that a document must have, if only as null; a table has all its columns in every row."""
DEAD_LETTER_BYTES = 8 * 1024 * 1024
"""Originals up to this size are kept whole in their letter; larger ones by hash and length."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """A pipeline's settings turned into what each room takes."""

    settings: PipelineSettings
    kafka: KafkaOptions
    database: PostgresOptions | MongoOptions
    specs: dict[str, TopicSpec]
    schemas: PipelineSchemas
    route: Callable[[OutboxEvent], Route]
    warn: Callable[[str], None]
    partitions: PartitionWatch
    limits: TopicLimits = field(default_factory=TopicLimits)
    refused: dict[str, str] = field(default_factory=dict)
    """Events that their topic was found to refuse for good, by place; remembered from attempt to attempt."""

    @property
    def declared(self) -> list[str]:
        """The topics whose rules are for this pipeline, or that have none."""
        specs = [spec for spec in self.specs.values() if spec.topic != self.kafka.dead_letter_topic]
        return declared_for(self.settings.pipeline, specs)

    def source(self, wake: Wakeup, until: Callable[[], Position | None] = lambda: None) -> RowSource:
        """`until` tells, once the stored position is known, from where the pipeline was set back."""
        if isinstance(self.database, MongoOptions):
            from tailrace.sources.mongo.source import MongoSource

            return MongoSource(self.database, wake=wake)
        return PostgresSource(replace(self.database, past=self._past()), wake=wake, warn=self.warn, until=until)

    def look(self, stored: Position | None) -> None:
        """Raises what keeps the source from being opened at `stored`. Changes nothing."""
        if isinstance(self.database, MongoOptions):
            from tailrace.sources.mongo.source import MongoSource

            MongoSource(self.database, wake=Wakeup()).check_start(stored)
        else:
            PostgresSource(self.database, wake=Wakeup()).check_start(stored)

    def prove(self, stored: Position | None) -> None:
        """Raises LogDiverged if the server's log is not the one that was read up to `stored`. Changes nothing."""
        if isinstance(stored, LsnPosition) and not isinstance(self.database, MongoOptions) and not self.database.adopt:
            require_same_log(self.database, stored, patience=PROOF_SECONDS)

    def _past(self) -> tuple[LsnPosition, ...]:
        """Where a window of time begins is known from the ledger alone: this process has not seen that."""
        if isinstance(self.database, MongoOptions) or self.database.replay_window.seconds is None:
            return ()
        since_ms = time.time_ns() // 1_000_000 - int(self.database.replay_window.seconds * 1000) - DAY_MS
        try:
            found = [entry.position for entry in position_history.read(self.kafka, since_ms)]
        except TailraceError as error:
            # Not worth a start: without it, more is held back than need be.
            self.warn(f"the ledger cannot be read, and the replay window begins anew: {error.what}")
            return ()
        return tuple(each for each in found if isinstance(each, LsnPosition))

    def position_recorder(
        self, admin: Admin, publisher: Publisher, source: RowSource, warn: Callable[[TailraceError], None]
    ) -> PositionRecorder:
        """Notes beside the pipeline where it is."""
        return PositionRecorder(
            self.kafka,
            admin,
            stored=lambda: publisher.stored,
            topics=lambda: publisher.topics,
            passed=source.passed,
            warn=warn,
        )

    def adopted(self) -> Wiring:
        """The same without --adopt, which holds for one start."""
        return replace(self, database=replace(self.database, adopt=False))

    def processor(self) -> EventProcessor:
        """What happens to each event; the schema registry, if there is one, is asked the first time.

        RegistryRefused only before the first position is stored: a registry that a pipeline has worked with and that
        now answers strangely is away.
        """
        try:
            self.schemas.ready()
        except RegistryRefused as error:
            if not self._has_run():
                raise
            raise RegistryUnavailable(error.what, why=error.why, remedy=error.remedy) from None
        limits = self.settings.limits
        return EventProcessor(
            layout=Layout(column_map(self.settings)),
            route=self.route,
            validate=self.schemas.validator().validate,
            make_record=self.schemas.records(),
            make_dead_letter=partial(
                dead_letter,
                letter_topic=self.kafka.dead_letter_topic,
                pipeline=self.settings.pipeline,
                limit_bytes=DEAD_LETTER_BYTES,
                keep_payload=self.settings.dead_letters.payload == "keep",
            ),
            halt_on=reasons_with("halt", self.settings.on_invalid, self.settings.dead_letters),
            park_on=reasons_with("park", self.settings.on_invalid, self.settings.dead_letters),
            batch_records=limits.batch_records,
            batch_bytes=limits.batch_bytes,
            refused=self.refused,
        )

    def _has_run(self) -> bool:
        """Whether a position is stored."""
        return self.kafka.offsets_topic in partition_counts(self.admin()) and offsets.read(self.kafka) is not None

    def admin(self) -> Admin:
        """One for an attempt: each has threads and buffers of its own."""
        return offsets.admin_client(self.kafka)

    def require_position_known(self, admin: Admin, *, ran: bool) -> None:
        """To be asked before each attempt: MongoDB itself does not know that we were there before."""
        if isinstance(self.database, MongoOptions) and ran:
            require_stored(self.kafka, admin)
        elif isinstance(self.database, MongoOptions) and not self.database.adopt:
            require_position_known(self.kafka, admin)

    def parking(self, admin: Admin) -> Parking | None:
        """Where something may be parked, or was under earlier settings: what waits must not be overtaken."""
        letters = self.settings.dead_letters
        parks = reasons_with("park", self.settings.on_invalid, letters)
        if not parks and state_topic(self.kafka) not in partition_counts(admin):
            return None
        if not self.kafka.exactly_once:
            raise ConfigError(
                f"kafka.delivery is at_least_once, and keys may be parked on {state_topic(self.kafka)}",
                why="What is parked and what is published must change together.",
                remedy="Set kafka.delivery: exactly_once until all of them are released, then delete that topic.",
            )
        return Parking(
            self.kafka, admin, Bounds(letters.park_keys, letters.park_hours), warn=self.warn, parks=bool(parks)
        )

    def probe(self, error: TailraceError) -> Probe | None:
        """How to find out cheaply whether the server that an error speaks of answers; None if it speaks of none."""
        if isinstance(error, KafkaUnavailable | OutcomeUnknown):
            return Probe("kafka", answering(self.kafka))
        registry = self.settings.schemas.registry if self.settings.schemas else None
        if isinstance(error, RegistryUnavailable) and registry is not None:
            return Probe("registry", partial(listens, registry.url))
        if not isinstance(error, SourceUnavailable):
            return None
        if isinstance(self.database, MongoOptions):
            from tailrace.sources.mongo.client import has_primary

            return Probe("mongo", partial(has_primary, self.database.uri, app_name=f"{self.database.app_name} (probe)"))
        return Probe("postgres", partial(is_up, self.database.conninfo))

    def alerts(self, log: StructuredLogger) -> Alerts:
        """One for the life of the process: it has a thread of its own."""
        hook = self.settings.dead_letters.webhook
        options = WebhookOptions(hook.url.reveal(), hook.header_values(), hook.timeout, hook.interval) if hook else None
        return Alerts(self.settings.pipeline, log, options, dead_letter_topic=self.kafka.dead_letter_topic)

    def diagnosed(self, error: TailraceError) -> TailraceError:
        """The error, or its cause: a broker whose certificate is not accepted looks like one that is away."""
        return certificate_trouble(self.kafka) or error if isinstance(error, KafkaUnavailable) else error

    def topic_manager(self, admin: Admin, kind: type[TopicManager] = TopicManager) -> TopicManager:
        """Creates topics as they are declared, or refuses."""
        topics = self.settings.topics
        default = TopicSpec("", topics.partitions, topics.replication)
        return kind(admin, self.specs, default, self.partitions, self.limits, create=topics.create)

    def ensure_offsets(self, admin: Admin) -> None:
        """Makes sure that positions and claims have their place, and that it forgets none."""
        offsets.ensure(self.kafka, admin)

    def publisher(
        self,
        admin: Admin,
        wake: Wakeup,
        tell: Callable[[str, str, int], None],
        require_owned: Callable[[float], None] = lambda _: None,
        stored: StoredState | None = None,
    ) -> Publisher:
        """Connects to Kafka, and makes sure that the topics are there, and that the rules are remembered."""
        known_topics.remember(self.kafka, self.declared, self.settings.topics.template, partition_counts(admin))
        topic_manager = self.topic_manager(admin)
        topic_manager.require([*(topic for topic in self.specs), self.kafka.dead_letter_topic])

        def dead_lettered(records: list[Record]) -> None:
            for (reason, type_name), count in count_dead_letters(records).items():
                tell(reason, type_name, count)

        return Publisher(
            self.kafka,
            topic_manager,
            stored or StoredState(self.kafka),
            wake=wake,
            dead_lettered=dead_lettered,
            require_owned=require_owned,
        )


def wire(settings: PipelineSettings, *, adopt: bool = False, warn: Callable[[str], None] = lambda _: None) -> Wiring:
    """Reads schemas and topic rules, and refuses what cannot work before any server is asked."""
    columns = column_map(settings)
    view = routing_view(settings.pipeline, columns)
    specs = load_topics(settings.topics.folder, view) if settings.topics.folder else []
    kafka = kafka_options(settings)
    require_usable(kafka)
    router = Router(specs, settings.topics.template, reserved=own_topics(kafka), view=view)
    return Wiring(
        settings,
        kafka,
        source_options(settings, columns, adopt=adopt),
        {spec.topic: spec for spec in (dead_letter_spec(settings, kafka), *reversed(specs))},
        PipelineSchemas(settings, warn=warn),
        router.route,
        warn,
        PartitionWatch(settings.pipeline),
    )


def kafka_options(settings: PipelineSettings) -> KafkaOptions:
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


def source_options(
    settings: PipelineSettings, columns: ColumnMap, *, adopt: bool = False
) -> PostgresOptions | MongoOptions:
    source = settings.source
    if source.mongo is not None:
        return mongo_options(settings, columns, adopt=adopt)
    if source.postgres is None or source.table is None:
        raise ConfigError("source names no database", remedy="Set source.postgres and source.table, or source.mongo.")
    return PostgresOptions(
        conninfo=source.postgres.reveal(),
        table=source.table,
        slot=source.slot,
        publication=source.publication,
        create=source.create,
        beginning=source.start == "beginning",
        order_by=source.order_by,
        timestamp=columns.timestamp,
        id_column=columns.id,
        event_columns=frozenset(column for _, column in columns.parts()),
        failover=source.failover,
        halt_on_change=source.on_change == "halt",
        link_timeout=source.link_timeout,
        adopt=adopt,
        replay_window=ReplayWindow.parse(source.replay_window),
    )


def mongo_options(settings: PipelineSettings, columns: ColumnMap, *, adopt: bool = False) -> MongoOptions:
    if find_spec("pymongo") is None:
        raise ConfigError("source.mongo needs MongoDB's driver, which is not installed", remedy=install_remedy("mongo"))
    source = settings.source
    mapped = dict(columns.parts())
    required = tuple(dict.fromkeys(mapped[part] for part in REQUIRED if part in mapped))
    names = [name.partition(".") for name in source.collection]
    return MongoOptions(
        uri=source.mongo.reveal() if source.mongo else "",
        app_name=app_name(settings.pipeline),
        database=names[0][0],
        collections=tuple(name for _, _, name in names),
        required=required,
        optional=tuple(dict.fromkeys(field for field in mapped.values() if field not in required)),
        ignored=bookkeeping(settings.outbox.layout) - frozenset(mapped.values()),
        payload=columns.payload,
        timestamp=columns.timestamp,
        create=source.create,
        beginning=source.start == "beginning",
        # Reading can only be resumed in an order that tells every document from every other.
        order_by=source.order_by if "_id" in source.order_by else (*source.order_by, "_id"),
        link_timeout=source.link_timeout,
        adopt=adopt,
    )


def app_name(pipeline: str) -> str:
    """What MongoDB calls our sessions: `tailrace status` looks for it."""
    return f"tailrace {pipeline}"


def declared_for(pipeline: str, specs: Iterable[TopicSpec]) -> list[str]:
    """The topics whose rules are for this pipeline, or that have none."""
    rules = [(spec.topic, spec.rule) for spec in specs]
    return [topic for topic, rule in rules if rule is None or not rule.pipelines or pipeline in rule.pipelines]


def own_topics(kafka: KafkaOptions) -> frozenset[str]:
    """Where no event may go: whoever writes there could make a pipeline skip or repeat events."""
    parking = {state_topic(kafka), waiting_topic(kafka)}
    books = {kafka.offsets_topic, position_history.history_topic(kafka)}
    return frozenset({*books, kafka.dead_letter_topic, resolutions_topic(kafka), *parking})


def dead_letter_spec(settings: PipelineSettings, kafka: KafkaOptions) -> TopicSpec:
    """What the dead-letter topic is like, unless a spec of the user's own describes it."""
    kept = settings.dead_letters.retention_days * DAY_MS
    # Kept from when it was written, not from the commit, which may be long ago; that stands in a header.
    stamp = {"message.timestamp.type": "LogAppendTime"}
    config = {"retention.ms": str(kept), "max.message.bytes": str(2 * DEAD_LETTER_BYTES), **stamp}
    return TopicSpec(kafka.dead_letter_topic, 1, kafka.internal_replication, config)


def routing_view(pipeline: str, columns: ColumnMap) -> View:
    """What routing rules see of this pipeline."""
    mapped = dict(columns.parts())
    taken = {mapped[part]: part for part in ("id", "payload", "key", "aggregate", "type") if part in mapped}
    return View(pipeline, columns.subject, columns.stream, taken)


def column_map(settings: PipelineSettings) -> ColumnMap:
    kind = "mongo" if settings.source.mongo is not None else "postgres"
    return replace(layout_map(settings.outbox.layout, kind), **settings.outbox.columns.given())
