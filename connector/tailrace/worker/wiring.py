"""Builds the parts of a running pipeline from its settings. The only module that knows all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from tailrace.backoff import Backoff
from tailrace.config.dead_letters import reasons_with
from tailrace.config.model import PipelineSettings
from tailrace.dlq.parked_keys import state_topic
from tailrace.dlq.parking import Parking, ParkingLimits
from tailrace.dlq.record import count_dead_letters, dead_letter
from tailrace.errors import (
    ConfigError,
    KafkaUnavailable,
    OutcomeUnknown,
    RegistryRefused,
    RegistryUnavailable,
    SourceUnavailable,
    TailraceError,
    TokenUnavailable,
)
from tailrace.event import OutboxEvent, Record, Route
from tailrace.kafka.client import KafkaOptions, require_usable
from tailrace.kafka.publisher import Publisher
from tailrace.kafka.tail import answering, connection_trouble
from tailrace.kafka.topic_limits import TopicLimits
from tailrace.kafka.topic_manager import PartitionWatch, TopicManager
from tailrace.kafka.topics import partition_counts
from tailrace.outbox.marks.columns import mark_columns, require_mark_columns
from tailrace.pipeline.loop import RowSource
from tailrace.pipeline.processor import EventProcessor
from tailrace.pipeline.record_retries import RecordRetries
from tailrace.pipeline.recorder import Recorder
from tailrace.positions.base import Position
from tailrace.positions.postgres import LsnPosition
from tailrace.routing.folder import load_topics
from tailrace.routing.router import Router
from tailrace.routing.specs import TopicSpec
from tailrace.sources.mongo.options import MongoOptions
from tailrace.sources.postgres.connection import is_up
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.sources.postgres.source import PostgresSource
from tailrace.sources.postgres.table_rescan import require_same_log
from tailrace.state import known_topics, offsets, position_history, sequences
from tailrace.state.offsets import Admin
from tailrace.state.position_recorder import PositionRecorder
from tailrace.state.sequences import StoredSequences
from tailrace.state.stored_state import StoredState, require_position_known, require_stored
from tailrace.wakeup import Wakeup
from tailrace.worker.alerts import Alerts
from tailrace.worker.logs import StructuredLogger
from tailrace.worker.marks.marker import DeliveryMarker
from tailrace.worker.marks.postgres import PostgresMarks
from tailrace.worker.marks.store import MarkStore
from tailrace.worker.metrics import PipelineMetrics
from tailrace.worker.options import (
    DAY_MS,
    DEAD_LETTER_BYTES,
    column_map,
    dead_letter_spec,
    declared_for,
    ignored_columns,
    kafka_options,
    layout_of,
    own_topics,
    record_retries,
    routing_view,
    sequence_check,
    source_options,
)
from tailrace.worker.outage import ServerProbe, listens
from tailrace.worker.rules import PipelineRules
from tailrace.worker.schemas import PipelineSchemas
from tailrace.worker.webhook import WebhookOptions

COMPARE_SECONDS = 10.0
"""How long a standby instance may compare the log: it must take over within seconds."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """The settings of a pipeline as the options of each component, with methods that create the components."""

    settings: PipelineSettings
    kafka: KafkaOptions
    database: PostgresOptions | MongoOptions
    specs: dict[str, TopicSpec]
    schemas: PipelineSchemas
    route: Callable[[OutboxEvent], Route]
    warn: Callable[[str], None]
    partitions: PartitionWatch
    rules: PipelineRules | None
    record_retries: RecordRetries
    """Events that their topic rejected and that may be sent again; kept across attempts."""
    limits: TopicLimits = field(default_factory=TopicLimits)
    refused: dict[str, str] = field(default_factory=dict)
    """Events that their topic rejected for good, by position; kept across attempts."""

    @property
    def backoff(self) -> Backoff:
        """The delays between attempts."""
        return self.settings.retries.backoff()

    @property
    def declared(self) -> list[str]:
        """The declared topics that this pipeline may write to."""
        specs = [spec for spec in self.specs.values() if spec.topic != self.kafka.dead_letter_topic]
        return declared_for(self.settings.pipeline, specs)

    def source(self, wakeup: Wakeup, until: Callable[[], Position | None] = lambda: None) -> RowSource:
        """`until` returns the position from which the pipeline was rewound, once the stored position is known."""
        if isinstance(self.database, MongoOptions):
            from tailrace.sources.mongo.source import MongoSource

            return MongoSource(self.database, wakeup=wakeup)
        return PostgresSource(replace(self.database, past=self._past()), wakeup=wakeup, warn=self.warn, until=until)

    def check_start(self, stored: Position | None) -> None:
        """Raises the error with which the source would fail to open at `stored`. Changes nothing."""
        if isinstance(self.database, MongoOptions):
            from tailrace.sources.mongo.source import MongoSource

            MongoSource(self.database, wakeup=Wakeup()).check_start(stored)
        else:
            PostgresSource(self.database, wakeup=Wakeup()).check_start(stored)

    def check_same_log(self, stored: Position | None) -> None:
        """Raises LogDiverged if the server's log is not the one that was read up to `stored`. Changes nothing."""
        if isinstance(stored, LsnPosition) and not isinstance(self.database, MongoOptions) and not self.database.adopt:
            require_same_log(self.database, stored, patience=COMPARE_SECONDS)

    def _past(self) -> tuple[LsnPosition, ...]:
        """Reads earlier positions from the position history, to find where a replay window begins."""
        if isinstance(self.database, MongoOptions) or self.database.replay_window.seconds is None:
            return ()
        since_ms = time.time_ns() // 1_000_000 - int(self.database.replay_window.seconds * 1000) - DAY_MS
        try:
            found = [entry.position for entry in position_history.read(self.kafka, since_ms)]
        except TailraceError as error:
            # No reason to fail: without it, more WAL is kept than necessary.
            self.warn(f"the position history cannot be read, so the replay window restarts: {error.what}")
            return ()
        return tuple(each for each in found if isinstance(each, LsnPosition))

    def marker(self, publisher: Publisher, warn: Callable[[TailraceError], None]) -> DeliveryMarker | None:
        """Creates the writer of delivery marks; None if there are none."""
        settings = self.settings
        if settings.marks == "none":
            return None
        marker = DeliveryMarker(
            self._mark_store(),
            self.kafka,
            rows=settings.marks == "rows",
            id_column=column_map(settings).id,
            stored=lambda: publisher.stored,
            warn=warn,
        )
        publisher.committed = marker.committed
        return marker

    def _mark_store(self) -> MarkStore:
        settings, outbox, database = self.settings, self.settings.outbox, self.database
        if isinstance(database, MongoOptions):
            from tailrace.worker.marks.mongo import MongoMarks

            columns = require_mark_columns(outbox.layout, outbox.mark_columns)
            return MongoMarks(database, settings.pipeline, columns, column_map(settings).id)
        return PostgresMarks(
            database,
            settings.pipeline,
            mark_columns(outbox.layout, outbox.mark_columns),
            rows=settings.marks == "rows",
        )

    def position_recorder(
        self, admin: Admin, publisher: Publisher, source: RowSource, warn: Callable[[TailraceError], None]
    ) -> PositionRecorder:
        """Creates the recorder of the position history."""
        return PositionRecorder(
            self.kafka,
            admin,
            stored=lambda: publisher.stored,
            topics=lambda: publisher.topics,
            passed=source.passed,
            warn=warn,
        )

    def adopted(self) -> Wiring:
        """Returns the wiring without --adopt, which applies to one start only."""
        return replace(self, database=replace(self.database, adopt=False))

    def processor(self, *, with_rules: bool = True) -> EventProcessor:
        """Creates the processor of events; the first call asks the schema registry, if there is one.

        Without `with_rules`, business rules are not applied: for operations that publish nothing.
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
        layout = layout_of(self.settings)
        rules = self.rules if with_rules else None
        validate = self.schemas.validator().validate
        if rules is not None:
            rules.ready()
        return EventProcessor(
            layout=layout,
            route=self.route,
            validate=rules.after(validate) if rules else validate,
            make_record=self.schemas.records(),
            make_dead_letter=partial(
                dead_letter,
                letter_topic=self.kafka.dead_letter_topic,
                pipeline=self.settings.pipeline,
                limit_bytes=DEAD_LETTER_BYTES,
                keep_payload=self.settings.dead_letters.payload == "keep",
                ignored=ignored_columns(self.settings),
            ),
            halt_on=reasons_with("halt", self.settings.on_invalid, self.settings.dead_letters),
            park_on=reasons_with("park", self.settings.on_invalid, self.settings.dead_letters),
            batch_records=limits.batch_records,
            batch_bytes=limits.batch_bytes,
            refused=self.refused,
            retries=self.record_retries,
            prepare=rules.preparing(layout) if rules else None,
        )

    def _has_run(self) -> bool:
        """Whether a position is stored."""
        return self.kafka.offsets_topic in partition_counts(self.admin()) and offsets.read(self.kafka) is not None

    def admin(self) -> Admin:
        """Creates an admin client. Use one per attempt: each has its own threads and buffers."""
        return offsets.admin_client(self.kafka)

    def require_position_known(self, admin: Admin, *, ran: bool) -> None:
        """Raises if a stored position is lost. Needed before each attempt, because MongoDB keeps no slot."""
        if isinstance(self.database, MongoOptions) and ran:
            require_stored(self.kafka, admin)
        elif isinstance(self.database, MongoOptions) and not self.database.adopt:
            require_position_known(self.kafka, admin)

    def parking(self, admin: Admin) -> Parking | None:
        """Returns the parking if keys may be parked, or were under earlier settings; otherwise None."""
        letters = self.settings.dead_letters
        parks = reasons_with("park", self.settings.on_invalid, letters)
        if not parks and state_topic(self.kafka) not in partition_counts(admin):
            return None
        if not self.kafka.exactly_once:
            raise ConfigError(
                f"kafka.delivery is at_least_once, and keys may be parked on {state_topic(self.kafka)}",
                why="Parking and publishing must be one transaction.",
                remedy="Set kafka.delivery: exactly_once until all keys are released, then delete that topic.",
            )
        return Parking(
            self.kafka, admin, ParkingLimits(letters.park_keys, letters.park_hours), warn=self.warn, parks=bool(parks)
        )

    def sequences(self, admin: Admin) -> StoredSequences | None:
        """Returns the check of sequence numbers. Without it, numbers that were stored by earlier settings are reset."""
        check = sequence_check(self.settings)
        if check is None:
            sequences.reset(self.kafka, admin)
            return None
        return StoredSequences(self.kafka, admin, check)

    def probe(self, error: TailraceError) -> ServerProbe | None:
        """Returns a cheap test whether the server of an error is available; None for other errors."""
        if isinstance(error, KafkaUnavailable | OutcomeUnknown | TokenUnavailable):
            return ServerProbe("kafka", answering(self.kafka))
        registry = self.settings.schemas.registry if self.settings.schemas else None
        if isinstance(error, RegistryUnavailable) and registry is not None:
            return ServerProbe("registry", partial(listens, registry.url))
        if not isinstance(error, SourceUnavailable):
            return None
        if isinstance(self.database, MongoOptions):
            from tailrace.sources.mongo.client import has_primary

            return ServerProbe(
                "mongo", partial(has_primary, self.database.uri, app_name=f"{self.database.app_name} (probe)")
            )
        return ServerProbe("postgres", partial(is_up, self.database.conninfo))

    def alerts(self, log: StructuredLogger, raised: Callable[[str], None] = lambda _: None) -> Alerts:
        """Creates the alerts, with their thread. Call once per process."""
        hook = self.settings.dead_letters.webhook
        options = WebhookOptions(hook.url.reveal(), hook.header_values(), hook.timeout, hook.interval) if hook else None
        topic = self.kafka.dead_letter_topic
        return Alerts(self.settings.pipeline, log, options, dead_letter_topic=topic, raised=raised)

    def metrics(self) -> PipelineMetrics:
        """Creates the metrics of the pipeline. Call once per process."""
        return PipelineMetrics(own_topics(self.kafka), capacity=self.settings.limits.batch_records)

    def diagnosed(self, error: TailraceError) -> TailraceError:
        """Returns the cause of an error if a refused certificate or login looks like an unavailable broker."""
        return connection_trouble(self.kafka) or error if isinstance(error, KafkaUnavailable) else error

    def topic_manager(self, admin: Admin, kind: type[TopicManager] = TopicManager) -> TopicManager:
        """Creates the manager that creates and checks topics."""
        topics = self.settings.topics
        default = TopicSpec("", topics.partitions, topics.replication)
        return kind(admin, self.specs, default, self.partitions, self.limits, create=topics.create)

    def ensure_offsets(self, admin: Admin) -> None:
        """Creates the offsets topic, or raises if its settings would lose positions."""
        offsets.ensure(self.kafka, admin)

    def publisher(
        self,
        admin: Admin,
        wakeup: Wakeup,
        alert: Callable[[str, str, int], None],
        require_owned: Callable[[float], None] = lambda _: None,
        stored: StoredState | None = None,
        recorder: Recorder | None = None,
    ) -> Publisher:
        """Connects to Kafka, creates missing topics, and stores the routing rules for other commands."""
        known_topics.remember(self.kafka, self.declared, self.settings.topics.template, partition_counts(admin))
        topic_manager = self.topic_manager(admin)
        topic_manager.require([*(topic for topic in self.specs), self.kafka.dead_letter_topic])

        def dead_lettered(records: list[Record]) -> None:
            for (reason, type_name), count in count_dead_letters(records).items():
                alert(reason, type_name, count)

        return Publisher(
            self.kafka,
            topic_manager,
            stored or StoredState(self.kafka),
            wakeup=wakeup,
            dead_lettered=dead_lettered,
            require_owned=require_owned,
            recorder=recorder,
        )


W = TypeVar("W", bound=Wiring)


def wire(settings: PipelineSettings, *, adopt: bool = False, warn: Callable[[str], None] = lambda _: None) -> Wiring:
    """Reads schemas and topic rules, and raises for settings that cannot work, without asking a server."""
    return assemble(Wiring, settings, source_options(settings, column_map(settings), adopt=adopt), warn)


def assemble(kind: type[W], settings: PipelineSettings, database: Any, warn: Callable[[str], None]) -> W:  # noqa: ANN401
    """Returns a wiring with the options of a source."""
    columns = column_map(settings)
    _require_markable(settings)
    view = routing_view(settings.pipeline, columns)
    specs = load_topics(settings.topics.folder, view) if settings.topics.folder else []
    kafka = kafka_options(settings)
    require_usable(kafka)
    router = Router(specs, settings.topics.template, reserved=own_topics(kafka), view=view)
    return kind(
        settings,
        kafka,
        database,
        {spec.topic: spec for spec in (dead_letter_spec(settings, kafka), *reversed(specs))},
        PipelineSchemas(settings, warn=warn),
        router.route,
        warn,
        PartitionWatch(settings.pipeline),
        PipelineRules(settings.rules) if settings.rules.checks else None,
        record_retries(settings),
    )


def _require_markable(settings: PipelineSettings) -> None:
    """Raises if the outbox can have no delivery marks of the kind that the settings ask for."""
    if settings.marks == "none":
        return
    if settings.marks == "watermark" and settings.source.mongo is not None:
        raise ConfigError(
            "`marks: watermark` is for Postgres",
            why="A document does not contain the time of its commit, with which a watermark could be compared.",
            remedy="Set marks: rows, or none.",
        )
    if settings.marks == "rows":
        require_mark_columns(settings.outbox.layout, settings.outbox.mark_columns)
