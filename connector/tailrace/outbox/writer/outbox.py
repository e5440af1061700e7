"""Outbox: adds events inside a service's own transaction.

    outbox = Outbox(layout="debezium", table="public.outbox", schemas="schemas")

    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE orders SET …")
        receipt = outbox.add(connection, "OrderPlaced", {"order_id": "o-1"}, aggregate=("order", "o-1"))

Everything that would make an event unpublishable is refused here, before anything is written, by the validator that the
connector uses. The event and the business rows are committed together, or not at all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from uuid import UUID

import orjson

from tailrace.errors import ConfigError, EventInvalid, Rejected
from tailrace.outbox.writer.drivers.base import Driver, driver_for
from tailrace.outbox.writer.event import NewEvent, PreparedEvent, trace_context, uuid7
from tailrace.outbox.writer.evidence import DeliveryEvidence
from tailrace.outbox.writer.mongo import MongoOutbox
from tailrace.outbox.writer.payload import MAX_BYTES, Payload, PayloadWriter
from tailrace.outbox.writer.postgres import PostgresOutbox
from tailrace.outbox.writer.pressure import Brake, BrakeState, Pressure, require_brake
from tailrace.outbox.writer.receipt import Receipt
from tailrace.outbox.writer.requests import Handle, Steps, run, run_async
from tailrace.outbox.writer.rows import column_map, layout_named
from tailrace.rules.rule import Rule, RuleEvent, RuleSet

if TYPE_CHECKING:
    from tailrace.outbox.writer.connector_status import StatusReader
    from tailrace.schemas.compiled import SchemaLookup

NAME_BYTES = 1000
"""The connector dead-letters events whose type or aggregate is longer."""

TABLE = "public.outbox"
_NO_EXTRA: Mapping[str, Any] = {}
_NO_TOPIC = "Rows of this layout do not name a topic: the connector finds it by the aggregate and the type."
_ROUTED = "Leave it out and write a routing rule; or name a column for it, columns={'stream': …}."


class Outbox:
    """Writes events to one outbox table or collection. Thread-safe; make one at start-up."""

    def __init__(
        self,
        *,
        layout: str = "debezium",
        table: str | None = None,
        columns: Mapping[str, str] | None = None,
        schemas: str | Path | SchemaLookup | None = None,
        without_schema: Literal["refuse", "allow"] = "refuse",
        topic: str | None = None,
        max_bytes: int = MAX_BYTES,
        default: Callable[[Any], Any] | None = None,
        rules: Mapping[str, Iterable[str | Rule]] | None = None,
        rules_timeout: float = 1.0,
        pipeline: str | None = None,
        slot: str | None = None,
        marks: Literal["none", "watermark", "rows"] = "none",
        brake: Brake | None = None,
        worker: str | None = None,
    ) -> None:
        """`layout`, `table` (in MongoDB `database.collection`) and `columns` are those of the pipeline's settings.

        In Postgres, `table` defaults to `public.outbox`.

        `schemas` is a folder of schemas; `without_schema` says whether types without a schema are added. `topic` is
        the topic of events that name none (layout `document`). `default` converts objects that JSON does not know.
        `rules` and `rules_timeout` are those of `rules.checks` and `rules.timeout`. Receipts need `pipeline`, the name
        of the pipeline (or its `slot`), and `marks` as it is set there. `brake` is for `slow_down`; `worker` is the
        address of the worker that runs `pipeline`, which `pressure` asks for its state.
        """
        _require_choice("without_schema", without_schema, ("refuse", "allow"))
        _require_choice("marks", marks, ("none", "watermark", "rows"))
        self._table = table
        self._layout = layout_named(layout)
        self._own_columns = dict(columns or {})
        self._has_topic = self._layout.has_topic or "stream" in self._own_columns
        if topic is not None and not self._has_topic:
            raise ConfigError(f"topic={topic!r} has no effect", why=_NO_TOPIC, remedy=_ROUTED)
        self._topic = topic
        self._evidence = DeliveryEvidence.of(pipeline, slot, marks)
        self._payloads = PayloadWriter(default, max_bytes)
        self._validate = None if schemas is None else _validator(schemas, without_schema, max_bytes)
        self._rules = None if rules is None else RuleSet.of(rules)
        self._rules_timeout = rules_timeout
        self._brake = None if brake is None else BrakeState(brake)
        self._status = None if worker is None else _status_reader(worker, pipeline)
        self._targets: dict[str, PostgresOutbox | MongoOutbox] = {}

    def add(
        self,
        connection: Handle,
        type: str,
        payload: Payload,
        *,
        aggregate: tuple[str, str] | None = None,
        id: str | UUID | None = None,
        key: str | None = None,
        topic: str | None = None,
        version: int | str | None = None,
        aggregate_version: int | None = None,
        traceparent: str | None = None,
        extra: Mapping[str, Any] = _NO_EXTRA,
    ) -> Receipt:
        """Adds an event in the transaction of `connection`. With an asyncio connection: `await outbox.add(…)`.

        `aggregate` is the type and the id of what changed. `payload` is a JSON value, JSON text as bytes, or None for
        a tombstone. The record's key is the aggregate's id, unless `key` is given (layout `document`). `id` defaults
        to a new UUIDv7, `version` to the latest version of the schema, `traceparent` to OpenTelemetry's current span.
        `extra` are further columns, which become headers.
        """
        event = NewEvent(
            type, payload, aggregate, id, key, topic, version, aggregate_version, traceparent, extra
        )  # fmt: skip
        driver = driver_for(connection)
        steps = self._add_one(driver, self._prepared(event))
        if driver.is_async:
            return cast("Receipt", run_async(steps, driver.execute))
        return run(steps, driver.execute)

    def add_many(self, connection: Handle, events: Iterable[NewEvent]) -> list[Receipt]:
        """Adds events with one statement, in their order. With an asyncio connection: `await outbox.add_many(…)`."""
        prepared = [self._prepared(_require_event(event)) for event in events]
        driver = driver_for(connection)
        steps = self._add(driver, prepared)
        if driver.is_async:
            return cast("list[Receipt]", run_async(steps, driver.execute))
        return run(steps, driver.execute)

    def exists(self, connection: Handle, event_id: str | UUID) -> bool:
        """Returns whether the outbox has an event with this id. With an asyncio connection: `await` it."""
        driver = driver_for(connection)
        steps = self._target(driver).exists(str(event_id))
        if driver.is_async:
            return cast("bool", run_async(steps, driver.execute))
        return run(steps, driver.execute)

    def pressure(self, connection: Handle) -> Pressure:
        """Returns how far the connector is behind. With an asyncio connection: `await` it.

        The database shows it. The worker, if `Outbox(worker=…)` names it, is asked at most once a second.
        """
        driver = driver_for(connection)
        steps = self._pressure(self._target(driver))
        if driver.is_async:
            return cast("Pressure", run_async(steps, driver.execute))
        return run(steps, driver.execute)

    def slow_down(self, connection: Handle) -> float:
        """Waits for a moment if the connector is behind (`Outbox(brake=…)`); returns the seconds.

        Call it before the transaction, so that no lock is held meanwhile. With an asyncio connection: `await` it.
        """
        driver = driver_for(connection)
        target = self._target(driver)
        steps = require_brake(self._brake).steps(lambda: self._pressure(target))
        if driver.is_async:
            return cast("float", run_async(steps, driver.execute))
        return run(steps, driver.execute)

    def _pressure(self, target: PostgresOutbox | MongoOutbox) -> Steps[Pressure]:
        if self._status is None:
            return (yield from target.pressure(self._evidence))
        # Before the database: no statement of the service's transaction waits for a worker.
        status = yield from self._status.steps()
        return status.added_to((yield from target.pressure(self._evidence)))

    def _add_one(self, driver: Driver, event: PreparedEvent) -> Steps[Receipt]:
        target = self._targets.get(driver.database) or self._target(driver)
        driver.require_transaction()
        added = yield from target.add((event,), many=False)
        return Receipt(event.id, added > 0, driver.origin(), target, self._evidence)

    def _add(self, driver: Driver, events: Sequence[PreparedEvent]) -> Steps[list[Receipt]]:
        target = self._target(driver)
        if not events:
            return []
        driver.require_transaction()
        distinct = list({event.id: event for event in events}.values()) if self._layout.repeatable else events
        added = yield from target.add(distinct, many=True)
        reader = driver.origin()
        # With several events it is not known which of them existed.
        created = added == len(distinct)
        return [Receipt(event.id, created, reader, target, self._evidence) for event in events]

    def _target(self, driver: Driver) -> PostgresOutbox | MongoOutbox:
        """Returns the steps for the connection's database; its layout is compiled once."""
        found = self._targets.get(driver.database)
        if found is None:
            columns = column_map(self._layout, driver.database, self._own_columns)
            if driver.database == "postgres":
                found = PostgresOutbox(self._table or TABLE, self._layout, columns, self._payloads)
            else:
                found = MongoOutbox(_require_collection(self._table), self._layout, columns)
            self._targets[driver.database] = found
        return found

    def _require_rules(
        self,
        rules: RuleSet,
        event: NewEvent,
        event_id: str,
        aggregate: str,
        key: str,
        text: bytes | None,
        version: str | None,
    ) -> None:
        """Raises EventInvalid if the event breaks a business rule that the connector runs, too."""
        payload = None if text is None else orjson.loads(text)
        headers = {name: str(value) for name, value in event.extra.items() if value is not None}
        seen = RuleEvent(event_id, event.type, aggregate, key, payload, version, headers, text)
        try:
            rules.require(seen, self._rules_timeout)
        except Rejected as error:
            raise _invalid(error) from None

    def _no_aggregate(self, event: NewEvent) -> tuple[str, str]:
        """Returns the aggregate of an event without one; raises EventInvalid if the layout needs it."""
        if event.aggregate is None and not self._layout.has_aggregate:
            return "", ""
        raise EventInvalid(
            "aggregate is not a pair",
            why="It names what has changed by its type and its id.",
            remedy='Write it like aggregate=("order", order_id).',
        )

    def _prepared(self, event: NewEvent) -> PreparedEvent:
        """Returns the event as it is written. Raises EventInvalid if it could never be published."""
        given = event.aggregate
        is_pair = isinstance(given, tuple) and len(given) == 2
        aggregate, aggregate_id = given if given and is_pair else self._no_aggregate(event)
        topic = self._topic if event.topic is None else event.topic
        if topic is not None and not self._has_topic:
            raise EventInvalid(f"the topic {topic!r} cannot be stored", why=_NO_TOPIC, remedy=_ROUTED)
        key = aggregate_id if event.key is None else event.key
        event_id = uuid7() if event.id is None else str(event.id)
        _check_text(event, event_id, aggregate, aggregate_id, key, topic)
        text = self._payloads.text(event.payload)
        version = None if event.version is None else str(event.version)
        if self._validate is not None:
            version = self._validate(event_id, event.type, aggregate, key, text, version)
        if self._rules is not None and self._rules.of_type(event.type):
            self._require_rules(self._rules, event, event_id, aggregate, key, text, version)
        traceparent = tracestate = None
        if event.traceparent is not None or "opentelemetry.trace" in sys.modules:
            traceparent, tracestate = trace_context(event.traceparent)
        return PreparedEvent(
            event_id, event.type, aggregate, aggregate_id, key, text, version, datetime.now(UTC), traceparent,
            tracestate, topic, event.aggregate_version, event.extra, event.id is not None,
        )  # fmt: skip


def _status_reader(worker: str, pipeline: str | None) -> StatusReader:
    from tailrace.outbox.writer.connector_status import StatusReader  # few services need it

    return StatusReader(worker, pipeline)


def _validator(
    schemas: str | Path | SchemaLookup, without_schema: str, max_bytes: int
) -> Callable[[str, str, str, str, bytes | None, str | None], str | None]:
    """Returns a function that validates an event as the connector does, and returns its schema's version."""
    from tailrace.event import OutboxEvent
    from tailrace.schemas.folder import load_folder
    from tailrace.schemas.validation import PayloadValidator

    lookup: SchemaLookup = load_folder(schemas) if isinstance(schemas, str | Path) else schemas
    validator = PayloadValidator(
        lookup,
        unknown="pass" if without_schema == "allow" else "dead_letter",
        max_bytes=max_bytes,
        where=str(schemas) if isinstance(schemas, str | Path) else "schemas",
    )

    def validate(
        event_id: str, type_name: str, aggregate: str, key: str, text: bytes | None, version: str | None
    ) -> str | None:
        event = OutboxEvent(event_id, type_name, aggregate, key.encode(), text, version, "", 0, [])
        try:
            _, schema = validator.validate(event, "")
        except Rejected as error:
            raise _invalid(error) from None
        return version if schema is None else str(schema.version)

    return validate


def _invalid(error: Rejected) -> EventInvalid:
    return EventInvalid(error.explanation, why="The connector would dead-letter it.", remedy=error.remedy)


def _check_text(event: NewEvent, event_id: str, aggregate: str, aggregate_id: str, key: str, topic: str | None) -> None:
    """Raises EventInvalid if one of the names cannot be stored or published."""
    try:
        joined = "".join((event.type, event_id, aggregate, aggregate_id, key, topic or ""))
    except TypeError:
        names = {"type": event.type, "aggregate's type": aggregate, "aggregate's id": aggregate_id, "key": key}
        names["topic"] = topic or ""
        name, value = next((name, value) for name, value in names.items() if not isinstance(value, str))
        flaw = f"the {name} {value!r}, which is not text"
        raise _bad_text(flaw, 'Write it like aggregate=("order", str(order.id)).') from None
    if not event.type or not event_id:
        raise _bad_text("an empty type or id", "Give every event a type, such as OrderPlaced.")
    if "\0" in joined:
        raise _bad_text("U+0000 in a name", "Remove the character.")
    if not joined.isascii():
        try:
            joined.encode()
        except UnicodeEncodeError:
            raise _bad_text("half a surrogate pair in a name, which is not text", "Correct the text.") from None
    if len(joined) > NAME_BYTES // 4 and max(len(event.type.encode()), len(aggregate.encode())) > NAME_BYTES:
        raise _bad_text(f"a type or aggregate of more than {NAME_BYTES:,} bytes", "Put the data into the payload.")


def _bad_text(flaw: str, remedy: str) -> EventInvalid:
    return EventInvalid(
        f"the event has {flaw}",
        why="Id, type, aggregate, key and topic are names that the database and Kafka must be able to store.",
        remedy=remedy,
    )


def _require_event(event: NewEvent) -> NewEvent:
    if not isinstance(event, NewEvent):
        raise EventInvalid(
            f"add_many got {type(event).__name__}",
            why="Each of its events is a NewEvent.",
            remedy='Write it like NewEvent("OrderPlaced", payload, aggregate=("order", order_id)).',
        )
    return event


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(
            f"{name}={value!r} is not possible",
            why=f"It is one of {', '.join(choices)}.",
            remedy=f"Correct Outbox({name}=…).",
        )


def _require_collection(name: str | None) -> str:
    database, _, collection = (name or "").partition(".")
    if name is None or not database or not collection:
        raise ConfigError(
            "no collection is named" if name is None else f"{name!r} is not the name of a collection",
            why="In MongoDB, Outbox(table=…) names database and collection.",
            remedy="Write it like table='shop.outbox'.",
        )
    return name
