"""The keys of Debezium's connectors for Postgres and MongoDB and of its outbox event router, as an outbox needs them.

From the reference documentation of Debezium 3.x. A pattern that ends with `*` stands for all keys that begin with it.
"""

from __future__ import annotations

POSTGRES = "io.debezium.connector.postgresql.PostgresConnector"
MONGO = "io.debezium.connector.mongodb.MongoDbConnector"
ROUTER_CLASSES = {
    POSTGRES: "io.debezium.transforms.outbox.EventRouter",
    MONGO: "io.debezium.connector.mongodb.transforms.outbox.MongoEventRouter",
}

ROUTER_RENAMED = {
    "field.event.id": "outbox.columns.id",
    "field.event.key": "outbox.columns.key",
    "field.event.type": "outbox.columns.type",
    "field.event.payload": "outbox.columns.payload",
    "field.event.timestamp": "outbox.columns.timestamp",
    "field.event.schema.version": "outbox.columns.version",
    "route.by.field": "outbox.columns.aggregate",
}
"""Options of the router, without `table.` or `collection.`, and the settings that they become."""

ROUTER_HARMLESS = {
    "expand.json.payload": "a JSON payload is always published as JSON",
    "json.payload.null.behavior": "a JSON payload is published as it is",
    "fields.additional.error.on.missing": "columns are checked at each start",
    "route.tombstone.on.empty.payload": "a NULL payload is always published as a tombstone",
    "predicate": "every row of the outbox is an event",
    "negate": "every row of the outbox is an event",
}

REFUSED = {
    "slot.drop.on.stop": "remove it: a slot that is dropped loses events. Drop it by hand when the pipeline is deleted",
    "table.exclude.list": "name the outbox in table.include.list",
    "schema.exclude.list": "name the outbox in table.include.list",
    "collection.exclude.list": "name the outbox in collection.include.list",
    "snapshot.select.statement.overrides*": "set `source.start_where` to the condition of the rows",
    "snapshot.mode.configuration.based.*": "choose another snapshot.mode",
    "mongodb.ssl.keystore*": "write tlsCertificateKeyFile into mongodb.connection.string",
    "mongodb.ssl.truststore*": "write tlsCAFile into mongodb.connection.string",
    "mongodb.authentication.class": "write authMechanism into mongodb.connection.string",
    "post.processors": "remove it: events are published as services wrote them",
}
"""Keys whose effect would be missed, and the remedy. `false` and an empty value have no effect."""

_LOG = "the slot moves by itself while the outbox is idle"
_ROW = "it concerns rows of tables; an event is published as it is in the outbox"
_BATCH = "batches are what has arrived; see `limits`"
_OWN = "Tailrace has metrics, notifications and commands of its own"
_RETRY = "see `retries`"

HARMLESS = {
    "topic.prefix": "topics of events come from the event router; the name of the connector names the position",
    "database.server.name": "topics of events come from the event router",
    "database.include.list": "the outbox is named by itself",
    "database.exclude.list": "the outbox is named by itself",
    "schema.include.list": "the outbox is named by itself",
    "heartbeat.*": _LOG,
    "slot.max.retries": _RETRY,
    "slot.retry.delay.ms": _RETRY,
    "slot.stream.params": "pgoutput gets the parameters that it needs",
    "retriable.restart.connector.wait.ms": _RETRY,
    "errors.max.retries": _RETRY,
    "connection.validation.timeout.ms": "see `source.link_timeout`",
    "database.initial.statements": "the connection needs no statements",
    "database.query.timeout.ms": "see `source.link_timeout`",
    "database.tcpKeepAlive": "see `source.link_timeout`",
    "database.sslfactory": "libpq has its own TLS",
    "driver.*": "libpq has its own options, which `source.postgres` may name",
    "status.update.interval.ms": "positions are confirmed when they are stored",
    "flush.lsn.source": "a position is confirmed only when it is stored",
    "lsn.flush.*": "a position is confirmed only when it is stored",
    "offset.mismatch.strategy": "a stored position that does not fit the slot is an error with a remedy",
    "publish.via.partition.root": "the publication of the outbox does so",
    "replica.identity.autoset.values": "only inserts are read",
    "xmin.fetch.interval.ms": _LOG,
    "max.queue.*": _BATCH,
    "poll.interval.ms": _BATCH,
    "query.fetch.size": _BATCH,
    "incremental.snapshot.*": "`tailrace replay` publishes existing rows again",
    "snapshot.*": "existing rows are read in the order of `source.order_by`",
    "signal.*": _OWN,
    "notification.*": _OWN,
    "custom.metric.tags": _OWN,
    "extended.headers.enabled": _OWN,
    "event.processing.failure.handling.mode": "see `on_invalid`",
    "guardrail.*": "a pipeline reads one outbox",
    "executor.shutdown.timeout.ms": "a pipeline stops after its batch",
    "schema.history.*": _ROW,
    "schema.name.adjustment.mode": _ROW,
    "field.name.adjustment.mode": _ROW,
    "field.renames": _ROW,
    "field.exclude.list": _ROW,
    "schema.refresh.mode": _ROW,
    "column.*": _ROW,
    "message.*": _ROW,
    "datatype.propagate.source.type": _ROW,
    "decimal.handling.mode": _ROW,
    "time.precision.mode": _ROW,
    "hstore.handling.mode": _ROW,
    "interval.handling.mode": _ROW,
    "binary.handling.mode": _ROW,
    "money.fraction.digits": _ROW,
    "converters": _ROW,
    "tombstones.on.delete": "the publication of an outbox has inserts only",
    "skipped.operations": "the publication of an outbox has inserts only",
    "truncate.handling.mode": "the publication of an outbox has inserts only",
    "skip.messages.without.change": _ROW,
    "unavailable.value.placeholder": _ROW,
    "provide.transaction.metadata": _ROW,
    "include.unknown.datatypes": _ROW,
    "include.schema.*": _ROW,
    "sourceinfo.struct.maker": _ROW,
    "topic.naming.strategy": "topics of events come from the event router",
    "topic.delimiter": "topics of events come from the event router",
    "topic.cache.size": "topics of events come from the event router",
    "topic.transaction": _ROW,
    "transaction.metadata.factory": _ROW,
    "read.only": "a pipeline writes nothing to the database, unless `marks` says so",
    "internal.*": "it is internal to Debezium",
    "mongodb.connection.mode": "the whole replica set or cluster is one stream",
    "mongodb.connection.string.shard.params": "the whole replica set or cluster is one stream",
    "mongodb.ssl.invalid.hostname.allowed": "write tlsAllowInvalidHostnames into mongodb.connection.string",
    "mongodb.connect.timeout.ms": "timeouts belong into mongodb.connection.string",
    "mongodb.socket.timeout.ms": "timeouts belong into mongodb.connection.string",
    "mongodb.server.selection.timeout.ms": "timeouts belong into mongodb.connection.string",
    "mongodb.heartbeat.frequency.ms": "the driver watches the replica set",
    "mongodb.poll.interval.ms": "the driver watches the replica set",
    "capture.*": "only inserts are read",
    "cursor.*": _BATCH,
    "poll.*": _BATCH,
    "oplog.*": "the driver reads the change stream",
    "slot.drop.on.stop": "a slot is never dropped",
}
"""Keys without an effect here, and why."""
