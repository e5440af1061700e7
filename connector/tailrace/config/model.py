"""Every setting of a pipeline: names, defaults and expected values.

`description` and `examples` appear in error messages: what is expected, and how to write it. The docstring below a
field is its meaning in docs/configuration.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from tailrace.config.archive import ArchiveSettings
from tailrace.config.auth import KafkaAuth, PostgresAuth, require_token_login
from tailrace.config.dead_letters import DeadLetterSettings, Policy
from tailrace.config.kafka_settings import checked_settings, revealed, wrong
from tailrace.config.retention import RetentionSettings
from tailrace.config.retries import RetrySettings
from tailrace.config.rules import RuleSettings, SequenceSettings
from tailrace.config.schemas import FormatSettings, SchemaSettings
from tailrace.config.section import Section
from tailrace.config.sources import (
    Collections,
    EmbeddedFolder,
    MessageSettings,
    MongoAddress,
    StartWhere,
    require_embedded,
    require_messages,
    require_one_database,
    require_orderable,
    require_token_address,
    valid_start_where,
)
from tailrace.config.values import (
    Bootstrap,
    Column,
    Connection,
    Folder,
    KafkaClientSettings,
    PathColumn,
    Replication,
    Seconds,
    Table,
    Template,
    Topic,
    Whole,
    Window,
)
from tailrace.outbox.specs import LAYOUTS

SECRET_PLACES = (
    ("source", "postgres"),
    ("source", "mongo"),
    ("source", "auth", "options"),
    ("kafka", "settings"),
    ("kafka", "auth", "oauth", "client_secret"),
    ("kafka", "auth", "options"),
    ("schemas", "registry", "settings"),
    ("dead_letters", "webhook", "url"),
    ("dead_letters", "webhook", "headers"),
    ("archive", "url"),
    ("archive", "options"),
)
"""Settings that may hold secrets: the loader resolves references below them to `Secret`."""

DEFAULT_TEMPLATE = "outbox.event.{aggregate}"
"""Debezium's naming, used without rules and template."""


class SourceSettings(Section):
    """One database: `postgres` with `table`, or `mongo` with `collection`; or an embedded outbox, `rocksdb`."""

    postgres: Connection | None = Field(
        default=None,
        description="a Postgres connection: a postgresql:// address or host=… dbname=…",
        examples=["postgresql://tailrace:${env:DB_PASSWORD}@localhost:5432/shop"],
    )
    """Connection to Postgres. Either this or `source.mongo` is required."""
    mongo: MongoAddress | None = Field(
        default=None,
        description="a MongoDB address: mongodb://… or mongodb+srv://…",
        examples=["mongodb://tailrace:${env:DB_PASSWORD}@localhost:27017/?replicaSet=rs0"],
    )
    """Connection to MongoDB, a replica set."""
    rocksdb: EmbeddedFolder | None = Field(
        default=None, description="the folder of an embedded outbox", examples=["/var/lib/node/outbox"]
    )
    """Folder of a service's embedded outbox, relative to this file. The service runs the pipeline itself. No other
    setting of `source` goes with it."""
    auth: PostgresAuth | None = Field(
        default=None, description="settings such as `aws_iam: {region: …}`", examples=["{aws_iam: {region: eu-west-1}}"]
    )
    """Login with a token instead of a password; each connection gets a new one. Postgres only."""
    table: Table | None = Field(
        default=None, description="the outbox table as schema.table", examples=["public.outbox"]
    )
    """The outbox table. Required with `source.postgres`, unless there are `messages`."""
    messages: MessageSettings | None = Field(
        default=None, description="settings such as `prefix: orders`", examples=["{prefix: orders}"]
    )
    """Events are messages in the log instead of rows of a table. Postgres only."""
    collection: Collections = Field(
        default=(),
        description="the outbox collection as database.collection, or a list of several of one database",
        examples=["shop.outbox"],
    )
    """The outbox collection, or several of one database. Required with `source.mongo`."""
    slot: str = Field(
        default="",
        pattern=r"^[a-z0-9_]{1,63}$",
        description="a slot name: a-z, 0-9 and _, at most 63",
        examples=["tailrace_orders"],
    )
    """Name of the replication slot. Default: `tailrace_<pipeline>`. Postgres only."""
    publication: str = Field(
        default="",
        min_length=1,
        max_length=63,
        description="a publication name, at most 63 long",
        examples=["tailrace_orders"],
    )
    """Name of the publication. Default: `tailrace_<pipeline>`. Postgres only."""
    create: bool = Field(default=True, description="true or false", examples=["true"])
    """Whether Tailrace creates a missing slot, publication or collection."""
    start: Literal["now", "beginning"] = Field(default="now", description="now or beginning", examples=["now"])
    """Where the first start begins: with rows written from now on, or with the rows already in the outbox."""
    start_where: StartWhere = Field(
        default="",
        description="a condition on columns (Postgres), or a filter (MongoDB)",
        examples=["processed IS NOT TRUE"],
    )
    """Which existing rows `start: beginning` publishes: an SQL condition, or a MongoDB filter such as
    `{status: {$ne: published}}`. Empty: all; with `marks: rows`, those that are not marked as published."""
    order_by: tuple[Column, ...] = Field(
        default=(), description="a list of columns of the outbox table", examples=["[created_at, id]"]
    )
    """Order in which existing rows are read. Default: the timestamp column, then the id (MongoDB: `_id`)."""
    failover: bool = Field(default=False, description="true or false (Postgres 17 and newer)", examples=["false"])
    """Whether the slot is a failover slot, so that the pipeline follows a promoted standby. Postgres 17 and newer."""
    on_change: Literal["ignore", "halt"] = Field(default="ignore", description="ignore or halt", examples=["ignore"])
    """What to do if an UPDATE, DELETE or TRUNCATE of the outbox is published: ignore it, or stop. Postgres only."""
    on_log_loss: Literal["halt", "recover"] = Field(default="halt", description="halt or recover", examples=["halt"])
    """What to do if the log is lost: stop, or recover the missed events from the outbox and continue."""
    replay_window: Window = Field(
        default="",
        description="an age, a size, or both; the smaller one applies",
        examples=["24 h", "2 GiB", "24 h, 2 GiB"],
    )
    """How much published WAL the slot keeps for replays, by age, size or both. Empty: none. Postgres only."""
    link_timeout: Seconds = Field(
        default=30, ge=1, le=3600, description="seconds, from 1 to 3600", examples=["30"], allow_inf_nan=False
    )
    """Seconds without an answer after which the database counts as unavailable."""

    @model_validator(mode="after")
    def _one_database(self) -> Self:
        if self.rocksdb is not None:
            require_embedded(self.model_fields_set)
            return self
        require_one_database(
            self.model_fields_set,
            has_postgres=self.postgres is not None,
            has_mongo=self.mongo is not None,
            has_outbox=bool(self.table or self.messages or self.collection),
        )
        if self.messages is not None:
            require_messages(self.__dict__, self.model_fields_set)
        self.__dict__["start_where"] = valid_start_where(
            self.start_where, is_mongo=self.mongo is not None, beginning=self.start == "beginning"
        )
        return self

    @property
    def kind(self) -> Literal["postgres", "mongo", "rocksdb"]:
        if self.rocksdb is not None:
            return "rocksdb"
        return "postgres" if self.mongo is None else "mongo"


class ColumnOverrides(Section):
    """Columns whose names differ from the layout. `key` and `version` may be inside a JSON column."""

    id: Column | None = Field(default=None, description="a column name", examples=["event_id"])
    """Column of the event id."""
    type: Column | None = Field(default=None, description="a column name", examples=["event_type"])
    """Column of the event type."""
    aggregate: Column | None = Field(default=None, description="a column name", examples=["aggregate"])
    """Column of the aggregate type."""
    key: PathColumn | None = Field(
        default=None,
        description="a column name, or a path in a JSON column",
        examples=["aggregate_id", "payload#/team_id"],
    )
    """Column of the Kafka key, or a path into a JSON column."""
    payload: Column | None = Field(default=None, description="a column name", examples=["body"])
    """Column of the payload."""
    version: PathColumn | None = Field(
        default=None,
        description="a column name, or a path in a JSON column",
        examples=["schema_version", "headers#/schema/version"],
    )
    """Column of the schema version, or a path into a JSON column."""
    timestamp: Column | None = Field(default=None, description="a column name", examples=["created_at"])
    """Column of the time at which the row was created."""
    subject: Column | None = Field(default=None, description="a column name", examples=["subject"])
    """Column of the subject, which rules can match."""
    stream: Column | None = Field(default=None, description="a column name", examples=["stream"])
    """Column of the topic name that `{stream}` stands for."""

    def given(self) -> dict[str, str]:
        """Returns the overridden columns, by the layout's names."""
        return {name: column for name in type(self).model_fields if (column := getattr(self, name)) is not None}


class OutboxSettings(Section):
    layout: Literal["debezium", "document", "streams", "storage"] = Field(
        default="debezium", description="debezium, document, streams or storage", examples=["debezium"]
    )
    """The expected columns, as listed in layouts.md. `document` is the usual layout in MongoDB."""
    columns: ColumnOverrides = Field(
        default=ColumnOverrides(), description="settings such as `id: event_id`", examples=["{id: event_id}"]
    )
    """Names that differ from the layout."""
    mark_columns: dict[str, Column] = Field(
        default={}, description="column names by mark column", examples=["{processed: sent, processed_at: sent_at}"]
    )
    """Names of mark columns that differ from the layout. With `layout: debezium`, the mark columns of the table."""


class TopicSettings(Section):
    folder: Folder | None = Field(default=None, description="a folder of routing rules", examples=["topics"])
    """Folder of routing rules, relative to this file."""
    template: Template | None = Field(
        default=None,
        description="a topic name that may contain {aggregate}, {type} and {stream}",
        examples=[DEFAULT_TEMPLATE],
    )
    """Topic of events that no rule matches. Default, if there is no `folder` either: `outbox.event.{aggregate}`; with
    the layouts `streams` and `storage`, `{stream}`."""
    create: bool = Field(default=True, description="true or false", examples=["true"])
    """Whether missing topics are created."""
    partitions: Whole = Field(default=3, ge=1, le=10_000, description="a whole number from 1 to 10000", examples=["3"])
    """Partitions of topics that are created from the template."""
    replication: Replication = Field(default=-1, description="a number of replicas, or -1", examples=["3"])
    """Replication factor of topics that are created from the template; -1 is the broker's default."""

    @model_validator(mode="after")
    def _somewhere_to_go(self) -> Self:
        if self.folder is None and self.template is None:
            self.__dict__["template"] = DEFAULT_TEMPLATE
        return self


class KafkaSettings(Section):
    bootstrap: Bootstrap = Field(description="host:port, several separated by commas", examples=["localhost:9092"])
    """Bootstrap servers."""
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once", description="exactly_once or at_least_once", examples=["exactly_once"]
    )
    """Kafka transactions, or plain idempotent writes with possible duplicates after a crash."""
    offsets_topic: Topic = Field(default="tailrace-offsets", description="a topic name", examples=["tailrace-offsets"])
    """Compacted topic with the stored positions. Pipelines may share it."""
    dead_letter_topic: Topic = Field(default="", description="a topic name", examples=["orders.dead-letters"])
    """Topic of dead letters. Default: `<pipeline>.dead-letters`."""
    internal_replication: Replication = Field(default=-1, description="a number of replicas, or -1", examples=["3"])
    """Replication factor of the internal topics; -1 is the broker's default."""
    settings: KafkaClientSettings = Field(
        default={}, description="librdkafka settings by name", examples=["{compression.type: zstd}"]
    )
    """Settings passed to librdkafka, such as `security.protocol`."""
    auth: KafkaAuth | None = Field(
        default=None, description="settings such as `aws_iam: {region: …}`", examples=["{aws_iam: {region: eu-west-1}}"]
    )
    """Login with tokens, by SASL_SSL and OAUTHBEARER. Other logins are settings of librdkafka."""

    def client_settings(self) -> dict[str, str | int | float | bool]:
        """Returns the librdkafka settings with secrets revealed, only for the client library."""
        return revealed(self.settings)


class LimitSettings(Section):
    batch_records: Whole = Field(
        default=6000, ge=1, le=1_000_000, description="a whole number from 1 to 1000000", examples=["6000"]
    )
    """Most records of one batch, which is one Kafka transaction."""
    batch_bytes: Whole = Field(
        default=8_388_608,
        ge=1024,
        le=1 << 30,
        description="bytes, from 1024 to 1073741824",
        examples=["8388608"],
    )
    """Most bytes of one batch."""
    payload_bytes: Whole = Field(
        default=1_000_000, ge=1, le=1 << 30, description="bytes, from 1 to 1073741824", examples=["1000000"]
    )
    """Largest payload. An event with a larger one is dead-lettered."""
    stall_timeout: Seconds = Field(
        default=120, ge=1, le=86_400, description="seconds, from 1 to 86400", examples=["120"], allow_inf_nan=False
    )
    """Seconds without progress, while the log moves or a thread is blocked, after which the pipeline ends as FAILED
    (PipelineStalled). At least twice `source.link_timeout` applies."""


class PipelineSettings(Section):
    """The settings of one pipeline."""

    pipeline: str = Field(
        pattern=r"^[a-z0-9_-]{1,48}$",
        description="a name: a-z, 0-9, _ and -, at most 48",
        examples=["orders"],
    )
    """Name of the pipeline: its `transactional.id` and its key on the offsets topic. Do not rename one that has run."""
    source: SourceSettings = Field(
        description="the database: at least `postgres` and `table`, or `mongo` and `collection`",
        examples=["{postgres: 'postgresql://tailrace@localhost/shop', table: public.outbox}"],
    )
    """The database and its outbox."""
    outbox: OutboxSettings = Field(
        default=OutboxSettings(), description="settings such as `layout: debezium`", examples=["{layout: debezium}"]
    )
    """How the columns or fields of the outbox map to an event."""
    schemas: SchemaSettings | None = Field(
        default=None, description="settings such as `folder: schemas`", examples=["{folder: schemas}"]
    )
    """Where schemas come from. Without this section payloads are published unvalidated."""
    format: FormatSettings = Field(
        default=FormatSettings(),
        description="settings such as `value: avro`",
        examples=["{value: avro, schema_id: prefix}"],
    )
    """How values and keys are written to Kafka."""
    topics: TopicSettings = Field(
        default=TopicSettings(), description="settings such as `folder: topics`", examples=["{folder: topics}"]
    )
    """Which topics events go to, and how missing topics are created."""
    kafka: KafkaSettings = Field(
        description="the brokers: at least `bootstrap`", examples=["{bootstrap: 'localhost:9092'}"]
    )
    """The brokers, the delivery mode and the internal topics."""
    on_invalid: Policy = Field(default="dead_letter", description="dead_letter, park or halt", examples=["dead_letter"])
    """What happens to an event that cannot be published: write a dead letter; write one and park its key; or stop."""
    dead_letters: DeadLetterSettings = Field(
        default=DeadLetterSettings(), description="settings such as `payload: hash`", examples=["{payload: hash}"]
    )
    """What dead letters keep, how long, and who is notified."""
    marks: Literal["none", "watermark", "rows"] = Field(
        default="none", description="none, watermark or rows", examples=["watermark"]
    )
    """Delivery marks: none; a view that shows which rows are published (`watermark`); columns of each row (`rows`)."""
    retries: RetrySettings = Field(
        default=RetrySettings(), description="settings such as `maximum: 60`", examples=["{base: 1, maximum: 60}"]
    )
    """Delays after errors that may pass, and how often a record that its topic refuses is sent."""
    rules: RuleSettings = Field(
        default=RuleSettings(),
        description="settings such as `checks: {'Order*': ['shop_rules:amount_is_positive']}`",
        examples=["{checks: {'Order*': ['shop_rules:amount_is_positive']}}"],
    )
    """Business rules that events must pass."""
    archive: ArchiveSettings | None = Field(
        default=None, description="settings such as `url: s3://…`", examples=["{url: 's3://cold/outbox'}"]
    )
    """Where `tailrace archive` writes old outbox rows."""
    retention: RetentionSettings | None = Field(
        default=None, description="settings such as `after: 30d`", examples=["{after: 30d}"]
    )
    """Which outbox rows `tailrace retention` deletes. All given conditions must hold."""
    limits: LimitSettings = Field(
        default=LimitSettings(),
        description="settings such as `batch_records: 6000`",
        examples=["{batch_records: 6000}"],
    )
    """Bounds of batches, payloads and time."""

    @property
    def name(self) -> str:
        return self.pipeline

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Fills in defaults that depend on other settings, and validates settings across sections."""
        slot = f"tailrace_{self.pipeline.replace('-', '_')}"
        layout = LAYOUTS[self.outbox.layout]
        self._require_no_table()
        if self.source.mongo is not None and "mongo" not in layout.databases:
            raise wrong("debezium or document, for MongoDB", "choose one of them", "outbox", "layout")
        if self.source.messages is not None:
            if layout.needed:
                raise wrong("debezium, document or streams, for messages", "choose one of them", "outbox", "layout")
            if self.marks != "none":
                raise wrong("none, because messages have no rows to mark", "remove it", "marks")
        columns = replace(layout.columns, **self.outbox.columns.given())
        order = tuple(column for column in (columns.timestamp, columns.id) if column)
        if layout.template and self.topics.folder is None and "template" not in self.topics.model_fields_set:
            self.__dict__["topics"] = self.topics.model_copy(update={"template": layout.template})
        source: dict[str, object] = {
            "order_by": self.source.order_by or (order if self.source.mongo is None else ("_id",))
        }
        require_orderable(self.source.order_by, has_mongo=self.source.mongo is not None)
        if self.source.mongo is None:
            source |= {"slot": self.source.slot or slot, "publication": self.source.publication or slot}
        letters = self.kafka.dead_letter_topic or f"{self.pipeline}.dead-letters"
        self.__dict__["source"] = self.source.model_copy(update=source)
        self.__dict__["kafka"] = self.kafka.model_copy(update={"dead_letter_topic": letters})
        if letters == self.kafka.offsets_topic:
            raise wrong(
                "another topic than kafka.offsets_topic",
                "rename kafka.dead_letter_topic: the offsets topic is compacted and would lose dead letters",
                "kafka",
                "dead_letter_topic",
            )
        if self.kafka.delivery == "at_least_once" and "park" in (self.on_invalid, *self.dead_letters.reasons.values()):
            raise wrong(
                "exactly_once, because parking and publishing must be one transaction",
                "set kafka.delivery: exactly_once, or use another policy than `park`",
                "kafka",
                "delivery",
            )
        if self.retention is not None:
            self.retention.require_outbox(
                is_mongo=self.source.mongo is not None, is_timed=columns.timestamp is not None
            )
        if self.rules.sequence is not None:
            self._require_sequence(self.rules.sequence)
        self._require_token_logins()
        self.format.require_registry(has_registry=self.schemas is not None and self.schemas.registry is not None)
        checked_settings(
            self.kafka.settings,
            self.limits.payload_bytes,
            transactional=self.kafka.delivery == "exactly_once",
        )
        return self

    def _require_token_logins(self) -> None:
        if self.kafka.auth is not None:
            require_token_login(self.kafka.settings)
        if self.source.auth is not None and self.source.postgres is not None:
            require_token_address(self.source.postgres)

    def _require_no_table(self) -> None:
        """Refuses settings of rows beside an embedded outbox: it has keys and bytes, and deletes them itself."""
        if self.source.rocksdb is None:
            return
        given: list[str] = [name for name in ("outbox", "archive", "retention") if name in self.model_fields_set]
        given += ["marks"] if self.marks != "none" else []
        for name in given:
            raise wrong("nothing beside source.rocksdb: there are no rows", "remove it", name)
        if self.rules.sequence is not None:
            raise wrong("nothing beside source.rocksdb: there are no columns", "remove it", "rules", "sequence")

    def _require_sequence(self, sequence: SequenceSettings) -> None:
        if sequence.number is None and self.outbox.layout not in ("storage", "document"):
            raise wrong(
                "a column name, or a path in a JSON column",
                "add `number: sequence_number` under `rules.sequence:`",
                "rules",
                "sequence",
                "number",
            )
        if self.kafka.delivery == "at_least_once":
            raise wrong(
                "exactly_once, because sequence numbers and events must be stored in one transaction",
                "set kafka.delivery: exactly_once, or remove rules.sequence",
                "kafka",
                "delivery",
            )
