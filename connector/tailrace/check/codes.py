"""The stable code of every finding: its area, what it says, and why it matters. For docs/doctor.md, too. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    """`what` describes the finding in general, `why` what happens if nothing is done."""

    area: str
    what: str
    why: str


AREAS = {
    "settings": "Settings, schemas and routing rules",
    "postgres": "Postgres",
    "slot": "Slot and WAL",
    "outbox": "Outbox",
    "mongo": "MongoDB",
    "events": "Events in the outbox",
    "kafka": "Kafka",
    "topics": "Topics",
    "access": "Access to Kafka",
    "registry": "Schema registry",
    "start": "Start",
    "worker": "Worker and machine",
    "doctor": "The check itself",
}
"""The areas in the order of the output."""

_STOPS = "The pipeline stops, or does not start."
_LOST_SLOT = "A lost slot means that events were not read: they must be found in the table by a recovery."
_PLAIN = "Whoever can read the network reads events and passwords, or poses as the server."
_LATE = "Lags, timestamps of records and retention are computed with these clocks."

CODES: dict[str, Code] = {
    # Checked by `tailrace check` as well.
    "settings": Code("settings", "The settings file cannot be used.", _STOPS),
    "source": Code("settings", "The settings of the source cannot be used.", _STOPS),
    "schemas": Code("settings", "A schema cannot be used, or there is none.", "Events cannot be validated."),
    "rules": Code("settings", "A business rule cannot be loaded, or a routing rule uses an unknown column.", _STOPS),
    "topics": Code("settings", "The routing rules cannot be used.", _STOPS),
    "postgres": Code("postgres", "Postgres does not answer, or refuses the login.", _STOPS),
    "postgres-encryption": Code("postgres", "The connection is not encrypted or not verified.", _PLAIN),
    "postgres-version": Code("postgres", "This version of Postgres has a known bug.", "Events can be lost."),
    "clock": Code("postgres", "The clock of the database differs from this machine's.", _LATE),
    "wal-level": Code("postgres", "wal_level is not logical.", _STOPS),
    "role": Code("postgres", "The role has too few rights, or far too many.", "Either it cannot read the log, or "
        "whoever gets its password owns the server."),
    "cluster-copy": Code("postgres", "The role may copy the whole cluster.", "Its password gives access to all "
        "databases of the server."),
    "primary": Code("postgres", "The server is a standby.", _STOPS),
    "synchronous-standbys": Code("postgres", "The connector counts as a synchronous standby.", "Commits of the "
        "service wait for Kafka, and hang while the connector is down."),
    "messages": Code("postgres", "Logical messages cannot be used as events here.", _STOPS),
    "publication": Code("slot", "The publication is missing, or publishes something else.", "Events are not "
        "published, or the log is read for nothing."),
    "slot": Code("slot", "The slot is invalidated, about to be, or unusable.", _LOST_SLOT),
    "slot-failover": Code("slot", "source.failover does not fit the slot or the server.", "After a failover the slot "
        "is missing on the new primary."),
    "wal-kept-for-slots": Code("slot", "max_slot_wal_keep_size is unlimited or small.", "Unlimited, a stopped "
        "connector fills the disk of the database; small, it loses its slot."),
    "replay-window": Code("slot", "The replay window does not fit the server.", "Replays reach back less far."),
    "idle-slots": Code("slot", "idle_replication_slot_timeout invalidates slots.", _LOST_SLOT),
    "free-slots": Code("slot", "No replication slot is free.", _STOPS),
    "free-wal-senders": Code("slot", "No WAL sender is free.", _STOPS),
    "table": Code("outbox", "The outbox table cannot be read from the log.", _STOPS),
    "table-rights": Code("outbox", "The role may not read the table.", "Existing rows cannot be read: no first read, "
        "recovery, replay or verification."),
    "columns": Code("outbox", "The columns do not fit the layout.", _STOPS),
    "delivery-columns": Code("outbox", "Columns of the layout are missing.", "Delivery marks cannot be written."),
    "tables-beside": Code("outbox", "Tables beside the outbox are missing.", "Services cannot write events."),
    "order-of-rows": Code("outbox", "Existing rows have no order by time.", "Events of a key may be read in another "
        "order than they were committed in."),
    "marks": Code("outbox", "Delivery marks cannot be written.", "Rows are published, but not marked."),
    "start-where": Code("outbox", "The predicate of the first read cannot be used.", _STOPS),
    "mongo": Code("mongo", "MongoDB does not answer, or refuses the login.", _STOPS),
    "mongo-encryption": Code("mongo", "The connection is not encrypted or not verified.", _PLAIN),
    "mongo-version": Code("mongo", "This version of MongoDB lacks something.", _STOPS),
    "user": Code("mongo", "The user has far too many rights.", "Whoever gets its password owns the server."),
    "replica-set": Code("mongo", "The server is not a replica set.", "It has no change streams: the pipeline stops."),
    "collection": Code("mongo", "The collection cannot be watched.", _STOPS),
    "rights": Code("mongo", "The user may not open the change stream.", _STOPS),
    "fields": Code("mongo", "Documents do not fit the layout.", "They become dead letters."),
    "order-by": Code("mongo", "There is no index on source.order_by.", "The first read stops."),
    "members": Code("mongo", "Members of the replica set are down.", "Without a majority no changes are sent."),
    "write-concern": Code("mongo", "The default write concern is not majority.", "A failover may roll back writes "
        "that were acknowledged, and their events are never published."),
    "oplog": Code("mongo", "The oplog covers a short time.", "A connector that is down for longer loses its position."),
    "kafka": Code("kafka", "Kafka does not answer, or refuses the client's settings.", _STOPS),
    "kafka-encryption": Code("kafka", "The connection is not encrypted or not verified.", _PLAIN),
    "offsets-topic": Code("topics", "The offsets topic could lose positions.", "Events are published twice, or the "
        "pipeline stops."),
    "dead-letter-topic": Code("topics", "The dead-letter topic could lose dead letters.", "Dead letters cannot be "
        "redriven."),
    "internal-topics": Code("topics", "An internal topic has one replica, or a partition without a leader.",
        "What is only there is lost with its disk."),
    "topic": Code("topics", "A topic is missing, differs from its declaration, or has one replica.", _STOPS),
    "topics-by-template": Code("topics", "Topics of the template cannot be created, or have one replica.", _STOPS),
    "other-pipelines": Code("topics", "Another pipeline publishes the same events to the same topics.",
        "Consumers get every event twice."),
    "registry": Code("registry", "The registry does not answer, or lacks schemas of the folder.", _STOPS),
    "start": Code("start", "A start would not resume at the stored position.", _STOPS),
    # Checked by `tailrace doctor` only.
    "wal-sender-timeout-off": Code("postgres", "wal_sender_timeout is 0.", "After a network fault the server never "
        "ends the old session: the slot stays in use, and nobody else can read it."),
    "wal-sender-timeout-short": Code("postgres", "wal_sender_timeout is very short.", "A short pause of the connector "
        "or the network ends the session, and decoding starts again."),
    "wal-sender-timeout-long": Code("postgres", "wal_sender_timeout is very long.", "After a network fault the slot "
        "stays in use for that long, and a restarted connector waits for it."),
    "slot-headroom": Code("slot", "Few replication slots are left.", "A new pipeline, a standby or a rebuild cannot "
        "get a slot; raising the limit needs a restart of Postgres."),
    "wal-sender-headroom": Code("slot", "Few WAL senders are left.", "A connector that reconnects may not get one."),
    "slot-without-failover": Code("slot", "The server has standbys, but the slot is not a failover slot.",
        "After a failover the slot is missing on the new primary: events must be found by a recovery."),
    "slot-not-synced": Code("slot", "Standbys do not synchronise failover slots.", "The slot is missing, or behind, "
        "on the new primary after a failover."),
    "slot-ahead-of-standby": Code("slot", "synchronized_standby_slots is empty.", "After a failover, events may be in "
        "Kafka whose rows the new primary never got."),
    "slot-retains-wal": Code("slot", "The slot holds much WAL.", "The disk of the database fills, or the slot is "
        "invalidated."),
    "foreign-slot": Code("slot", "A slot that nobody reads holds WAL.", "The disk of the database fills."),
    "outbox-dead-tuples": Code("outbox", "Much of the table is dead rows.", "Reads and indexes become slow, and the "
        "table grows."),
    "outbox-autovacuum-off": Code("outbox", "Autovacuum is off for the table.", "Dead rows are never removed, and "
        "transaction ids run out in the end."),
    "outbox-autovacuum-late": Code("outbox", "Autovacuum runs rarely for a table of this size.", "Millions of dead "
        "rows are kept until it runs."),
    "outbox-index-bloat": Code("outbox", "An index is mostly empty.", "It wastes memory and disk space."),
    "outbox-index-missing": Code("outbox", "An index for retention or marks is missing.", "Each run reads the whole "
        "table."),
    "outbox-index-invalid": Code("outbox", "An index is invalid.", "It is written, but never used."),
    "outbox-size": Code("outbox", "The outbox is large and nothing deletes rows.", "It grows for ever."),
    "type-without-schema": Code("events", "Events in the outbox have no schema.", "They become dead letters, or are "
        "published without validation."),
    "type-without-route": Code("events", "Events in the outbox match no routing rule.", "They become dead letters, or "
        "stop the pipeline."),
    "type-topic-missing": Code("events", "Events in the outbox go to a topic that does not exist.", _STOPS),
    "event-invalid": Code("events", "Events in the outbox would be rejected today.", "They become dead letters when "
        "they are published or replayed."),
    "row-unreadable": Code("events", "Rows of the outbox are not events.", "They become dead letters."),
    "mongo-known-bug": Code("mongo", "This version of MongoDB has a known bug.", "See the description of the bug."),
    "mongo-single-member": Code("mongo", "The replica set has one member.", "If it is lost, so are all events that "
        "were not published."),
    "mongo-index-missing": Code("mongo", "An index of the layout is missing.", "Retention and marks read the whole "
        "collection."),
    "librdkafka-known-bug": Code("kafka", "This version of librdkafka has a known bug.", "Events can be lost."),
    "kafka-known-bug": Code("kafka", "This version of Kafka has a known bug.", "Readers of a partition may stop."),
    "kafka-clock": Code("kafka", "The clock of a broker is ahead of this machine's.", _LATE),
    "transaction-timeout": Code("kafka", "The brokers do not accept the transaction timeout.", _STOPS),
    "transactional-id-expiration": Code("kafka", "Brokers forget transactional ids soon.", "An old instance that was "
        "suspended for longer is not fenced by its epoch."),
    "kafka-settings-unread": Code("kafka", "The settings of the brokers cannot be read.", "They were not checked."),
    "unclean-election": Code("topics", "A topic allows unclean leader election.", "A replica that lacks records may "
        "become leader: published events disappear, stored positions go back."),
    "min-insync-low": Code("topics", "min.insync.replicas is 1 although there are more replicas.", "A record counts "
        "as published when one disk has it."),
    "min-insync-high": Code("topics", "min.insync.replicas is as high as the number of replicas, or higher.",
        "One broker that is down stops the pipeline; if it is higher, nothing can ever be published."),
    "event-topic-compacted": Code("topics", "A topic of events is compacted.", "Kafka keeps only the last event of "
        "each key."),
    "internal-topic-settings": Code("topics", "An internal topic has settings that lose its content.", "Resolutions, "
        "parked keys or sequence numbers are forgotten, and events may be published twice."),
    "offsets-topic-uncompacted": Code("topics", "The offsets topic is compacted late, or never.", "Each start reads it "
        "completely: starts become slow."),
    "auto-create": Code("topics", "The brokers create topics on demand.", "A misspelt topic exists at once, with the "
        "brokers' default settings."),
    "topic-access": Code("access", "The principal lacks rights on a topic.", _STOPS),
    "create-access": Code("access", "The principal may not create topics.", "A topic that is needed and does not "
        "exist stops the pipeline."),
    "transactional-id-access": Code("access", "The principal lacks rights on the transactional id.", _STOPS),
    "access-unread": Code("access", "The rights on the transactional id cannot be read.", "They were not checked."),
    "registry-compatibility": Code("registry", "Compatibility is not checked by the registry.", "A schema that breaks "
        "consumers can be registered by anybody."),
    "registry-key-schema": Code("registry", "A topic has no schema for its keys.", "Its events become dead letters."),
    "registry-subject-empty": Code("registry", "A subject has no schema.", "Its events have no schema."),
    "same-name": Code("worker", "Two files have the same pipeline name, or a file cannot be used.", "The second one "
        "does not run."),
    "same-slot": Code("worker", "Two pipelines use one slot.", "Only one of them can read, and each confirms events "
        "that the other has not published."),
    "same-events": Code("worker", "Two pipelines publish one outbox to the same topics.", "Consumers get every event "
        "twice."),
    "shared-topic": Code("worker", "Pipelines of different outboxes publish to one topic.", "There is no common order "
        "between them, and a replay of one concerns readers of both."),
    "memory": Code("worker", "Little memory is left for the pipelines.", "The system kills processes."),
    "open-files": Code("worker", "The limit of open files is low.", "Connections fail."),
    "disk-space": Code("worker", "A disk is nearly full.", "Files cannot be written: temporary files, archives, "
        "configurations."),
    "not-checked": Code("doctor", "A check did not end in time, or failed.", "What it checks is unknown."),
}  # fmt: skip
