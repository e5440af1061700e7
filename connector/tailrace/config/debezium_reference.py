"""Describes the keys of Debezium that are translated, for forms of consoles and for the documentation."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.config.debezium_keys import MONGO, POSTGRES, ROUTER_CLASSES


class DebeziumKey(NamedTuple):
    name: str
    text: str
    type: str = "STRING"
    default: str | None = None
    required: bool = False
    importance: str = "MEDIUM"


def _router(prefix: str, router: str) -> tuple[DebeziumKey, ...]:
    whole = f"transforms.outbox.{prefix}."
    return (
        DebeziumKey("transforms", "Names of transformations: the outbox event router alone.", "LIST", "outbox", True),
        DebeziumKey("transforms.outbox.type", "The outbox event router.", "CLASS", router, True),
        DebeziumKey(f"{whole}field.event.id", "Becomes `outbox.columns.id`."),
        DebeziumKey(f"{whole}field.event.key", "Becomes `outbox.columns.key`."),
        DebeziumKey(f"{whole}field.event.type", "Becomes `outbox.columns.type`."),
        DebeziumKey(f"{whole}field.event.payload", "Becomes `outbox.columns.payload`."),
        DebeziumKey(f"{whole}field.event.timestamp", "Becomes `outbox.columns.timestamp`."),
        DebeziumKey(f"{whole}field.event.schema.version", "Becomes `outbox.columns.version`."),
        DebeziumKey(
            f"{whole}fields.additional.placement",
            "Further columns are headers under their own names: `column:header`. Other placements and aliases are "
            "refused.",
            "LIST",
        ),
        DebeziumKey(f"{whole}op.invalid.behavior", "`fatal` becomes `source.on_change: halt`, others `ignore`."),
        DebeziumKey("transforms.outbox.route.by.field", "Becomes `outbox.columns.aggregate`."),
        DebeziumKey(
            "transforms.outbox.route.topic.replacement",
            "Becomes `topics.template`, with `{aggregate}` for `${routedByValue}`.",
            default="outbox.event.${routedByValue}",
        ),
    )


_SNAPSHOT = DebeziumKey(
    "snapshot.mode",
    "initial becomes `source.start: beginning`, no_data and never `now`, when_needed also `on_log_loss: recover`.",
    default="initial",
)
_PREFIX = DebeziumKey("topic.prefix", "Has no effect: topics come from the event router.", importance="LOW")
_BATCH = DebeziumKey("max.batch.size", "Becomes `limits.batch_records`.", "INT", importance="LOW")

DEBEZIUM_KEYS = {
    POSTGRES: (
        DebeziumKey("database.hostname", "Host of Postgres.", required=True, importance="HIGH"),
        DebeziumKey("database.port", "Port of Postgres.", "INT", "5432", importance="HIGH"),
        DebeziumKey("database.user", "User for the connection.", importance="HIGH"),
        DebeziumKey("database.password", "Password for the connection.", "PASSWORD", importance="HIGH"),
        DebeziumKey("database.dbname", "Name of the database.", required=True, importance="HIGH"),
        DebeziumKey("database.sslmode", "TLS mode of libpq: disable, prefer, require, verify-ca, verify-full."),
        DebeziumKey("database.sslcert", "File of the client's certificate."),
        DebeziumKey("database.sslkey", "File of the client's key."),
        DebeziumKey("database.sslpassword", "Password of the client's key.", "PASSWORD"),
        DebeziumKey("database.sslrootcert", "File of the accepted certificate authorities."),
        DebeziumKey("table.include.list", "The outbox table: one name, not a pattern.", required=True),
        DebeziumKey("plugin.name", "Only pgoutput.", default="pgoutput"),
        DebeziumKey("slot.name", "Becomes `source.slot`."),
        DebeziumKey("slot.failover", "Becomes `source.failover`.", "BOOLEAN"),
        DebeziumKey("publication.name", "Becomes `source.publication`."),
        DebeziumKey(
            "publication.autocreate.mode",
            "filtered and all_tables become `source.create: true` (the publication has the outbox alone), disabled and "
            "no_tables `false`.",
        ),
        _SNAPSHOT,
        _PREFIX,
        _BATCH,
        *_router("table", ROUTER_CLASSES[POSTGRES]),
    ),
    MONGO: (
        DebeziumKey(
            "mongodb.connection.string", "Address of the replica set.", "PASSWORD", required=True, importance="HIGH"
        ),
        DebeziumKey("mongodb.user", "User, if the address has none."),
        DebeziumKey("mongodb.password", "Password of that user.", "PASSWORD"),
        DebeziumKey("mongodb.authsource", "Database that knows the user."),
        DebeziumKey("mongodb.ssl.enabled", "Whether to use TLS.", "BOOLEAN", "false"),
        DebeziumKey(
            "collection.include.list", "Outbox collections of one database, without patterns.", "LIST", required=True
        ),
        _SNAPSHOT,
        _PREFIX,
        _BATCH,
        *_router("collection", ROUTER_CLASSES[MONGO]),
    ),
}
