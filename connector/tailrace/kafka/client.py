"""How we talk to Kafka: client settings that carry guarantees, and one table from librdkafka's errors to ours.

librdkafka has four classes of errors: retriable, requires-abort, fatal, and unflagged, which counts as fatal. After
anything but a clean commit the producer is thrown away and the stored position is read again: it tells the truth.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from tailrace.connection_causes import certificate_error, out_of_files
from tailrace.errors import (
    ConfigError,
    Fenced,
    KafkaUnavailable,
    OutcomeUnknown,
    PublishError,
    TailraceError,
    TopicMissing,
    TopicRefused,
)
from tailrace.kafka.topic_limits import BATCH_BYTES

TRANSACTION_TIMEOUT_MS = 60_000
"""A hanging transaction holds back every reader of its partitions until this passes, so it stays short."""
MESSAGE_TIMEOUT_MS = 30_000
"""Must be below the transaction's timeout: a message that times out must still find a transaction to abort."""
SOCKET_TIMEOUT_MS = 8_000
"""For the answer to a request of the publisher. A broker that hangs is replaced by others after 9 s, by default
(`broker.session.timeout.ms`): what was sent to it is then to be sent again, and not only after a minute."""
SETUP_TIMEOUT_MS = 5_000
"""For a new connection, login included: the kernel of a broker that hangs still accepts connections."""
METADATA_MS = 3_000
"""How soon a partition's new leader is known, if nobody says that the old one is gone."""
METADATA_AGE_MS = 180_000
"""After that, topics count as unknown. Three refreshes by default, which a broker that hangs may take to not answer."""
RECONNECT_MS = 2_000
"""How long a client waits at most before it connects again to a broker that was away."""
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""What the client itself lets pass. Topics set the real bound; dead letters may be larger than any event."""

Setting = str | int | float | bool
Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """What the publisher needs to know; the settings of the same names."""

    bootstrap: str
    pipeline: str
    exactly_once: bool = True
    offsets_topic: str = "tailrace-offsets"
    dead_letter_topic: str = ""
    internal_replication: int = -1
    settings: Mapping[str, Setting] = field(default_factory=dict, repr=False)


_log = logging.getLogger("librdkafka")
KAFKA_TLS = "ssl.ca.location, ssl.certificate.location and ssl.key.location under kafka.settings"


def common_config(options: KafkaOptions) -> Config:
    """Settings of every client: the user's own pass through, ours stand above them."""
    return {
        # Defaults a user may change:
        "socket.connection.setup.timeout.ms": SETUP_TIMEOUT_MS,
        "api.version.request.timeout.ms": SETUP_TIMEOUT_MS,
        "topic.metadata.refresh.interval.ms": METADATA_MS,
        "metadata.max.age.ms": METADATA_AGE_MS,
        "reconnect.backoff.max.ms": RECONNECT_MS,
        **options.settings,
        "bootstrap.servers": options.bootstrap,
        "client.id": f"tailrace-{options.pipeline}",
        "logger": _log,
    }


# Settings that only a producer understands would make a consumer warn on each start.
_PRODUCER_ONLY = (
    "acks", "batch.", "compression.", "delivery.", "linger.", "message.timeout", "partitioner", "queue.buffering",
    "transaction.", "sticky.", "max.in.flight",
)  # fmt: skip


def admin_config(options: KafkaOptions) -> Config:
    shared = {name: value for name, value in options.settings.items() if not name.startswith(_PRODUCER_ONLY)}
    return common_config(replace(options, settings=shared))


def consumer_config(options: KafkaOptions, group: str) -> Config:
    """A reader of committed records only that never commits offsets of its own."""
    return {
        **admin_config(options),
        "group.id": group,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": False,
        "fetch.wait.max.ms": 50,  # the end of a quiet topic should not take half a second to find
        "fetch.queue.backoff.ms": 10,  # a reader whose queue was full for a moment would rest for a second
    }


def producer_config(options: KafkaOptions, *, batch_bytes: int | None = None) -> Config:
    """`batch_bytes` is what the topics take at most: batches are made no larger."""
    config: Config = {
        # Defaults a user may change:
        "linger.ms": 5,
        "socket.nagle.disable": True,  # small transactions would wait 40 ms for a delayed acknowledgement
        "partitioner": "murmur2_random",  # as the Java clients: a key keeps its partition when producers change
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "queue.buffering.max.kbytes": 65536,
        "message.timeout.ms": MESSAGE_TIMEOUT_MS,
        "socket.timeout.ms": SOCKET_TIMEOUT_MS,
        "topic.metadata.propagation.max.ms": 5000,
        **common_config(options),
        # What the guarantees stand on:
        "enable.idempotence": True,
        "acks": "all",
        # Only failures call back: a report per record would cost more than the record.
        "delivery.report.only.error": True,
    }
    if batch_bytes is not None and batch_bytes < batch_size(options):
        config["batch.size"] = batch_bytes
    if options.exactly_once:
        config.setdefault("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
        if "socket.timeout.ms" not in options.settings:
            # librdkafka refuses one that is longer than the transaction's.
            config["socket.timeout.ms"] = min(SOCKET_TIMEOUT_MS, int(config["transaction.timeout.ms"]))
        config["transactional.id"] = options.pipeline
    return config


def batch_size(options: KafkaOptions) -> int:
    """How large record batches are, unless topics take less."""
    return int(options.settings.get("batch.size", BATCH_BYTES))


def require_usable(options: KafkaOptions) -> None:
    """Refuses settings that the publisher's client would refuse, which an admin client is not even shown."""
    config = producer_config(options)
    # Without it nothing can be fenced, whatever happens here.
    config.pop("transactional.id", None)
    try:
        Producer(config)
        Consumer(consumer_config(options, "tailrace-check")).close()
    except KafkaException as error:
        raise unusable(error) from None


def unusable(error: KafkaException) -> TailraceError:
    """librdkafka refused its settings before it talked to anyone, or was refused memory or a thread."""
    if error_of(error).code() == KafkaError._CRIT_SYS_RESOURCE:
        return KafkaUnavailable(
            f"Kafka's client cannot be started: {error_of(error).str()}",
            why=out_of_files() or "This process is given no more memory or threads.",
            remedy="Raise its limits (ulimit, the container's memory). Tailrace tries again by itself.",
        )
    return ConfigError(
        f"Kafka's client refuses its settings: {error_of(error).str()}",
        why="A name or a value under kafka.settings is not one of librdkafka's.",
        remedy="Correct kafka.settings (https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md).",
    )


_FENCING = {
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError.TRANSACTION_COORDINATOR_FENCED,
}
_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_REFUSING = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the principal has no Write and Describe rights on it",
    KafkaError.MSG_SIZE_TOO_LARGE: "a record is larger than the topic's max.message.bytes",
    KafkaError.RECORD_LIST_TOO_LARGE: "a batch is larger than the topic's segment",
    KafkaError.INVALID_TIMESTAMP: "the clocks of this machine and of the brokers differ: the time of publishing is "
    "outside what the topic takes (message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
    KafkaError.INVALID_RECORD: "the topic demands something the record lacks, such as a key (compacted topics)",
    KafkaError.POLICY_VIOLATION: "a broker policy forbids the record",
    KafkaError.TOPIC_EXCEPTION: "it is not a legal topic to write to",
}
_FORBIDDING = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Grant Write and Describe on the transactional id.",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Grant IdempotentWrite on the cluster.",
    KafkaError.SASL_AUTHENTICATION_FAILED: "Check the SASL settings under kafka.settings.",
    KafkaError._AUTHENTICATION: "Check the SASL settings under kafka.settings.",
    KafkaError._SSL: "Check the TLS settings under kafka.settings.",
    KafkaError.UNSUPPORTED_VERSION: "Exactly-once needs Kafka 2.5 or newer.",
}
_TLS = {KafkaError._SSL, KafkaError._TRANSPORT}
_AWAY = {
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.KAFKA_STORAGE_ERROR,
}

# A failed record's error carries no flags, so those that only mean a lost transaction are named.
_UNDECIDED = {
    KafkaError._STATE,
    KafkaError._FATAL,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError.INVALID_TXN_STATE,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
}


def error_of(exception: KafkaException) -> KafkaError:
    error: KafkaError = exception.args[0]
    return error


def translate(error: KafkaError, doing: str, topic: str | None = None) -> TailraceError:
    """The one table from librdkafka's errors to ours; `doing` says what was tried."""
    code, text = error.code(), f"{doing}: {error.str()}"
    if code in _FENCING:
        return Fenced(
            text,
            why="Another instance of this pipeline started, or this one slept longer than its transaction's timeout.",
            remedy="If another instance runs, all is well: it goes on. Otherwise start this one again.",
        )
    if code in _MISSING:
        return TopicMissing(
            f"{doing}: there is no topic {topic}" if topic else text,
            why="It was deleted, or never created.",
            remedy="Create it, or let Tailrace do it on its next start (topics.create: true). Nothing was skipped.",
        )
    if code in _REFUSING:
        return TopicRefused(
            f"{doing}: the topic {topic or ''} refuses our records: {error.str()}",
            why=f"Probably {_REFUSING[code]}.",
            remedy="Mend the topic or the rights, then start again: nothing was skipped.",
        )
    if code in _TLS and (invalid := certificate_error(text, "Kafka", KAFKA_TLS)) is not None:
        return invalid
    if code in _FORBIDDING:
        return PublishError(text, why="Kafka does not let us in.", remedy=_FORBIDDING[code])
    if code in _AWAY or error.retriable():
        why = out_of_files() or "Kafka is away, or too slow."
        return KafkaUnavailable(text, why=why, remedy="Tailrace tries again by itself.")
    if error.txn_requires_abort() or error.fatal() or code in _UNDECIDED:
        return OutcomeUnknown(
            text,
            why="The transaction's outcome is not known to this producer.",
            remedy="Tailrace builds a new producer and asks the offsets topic, by itself.",
        )
    return PublishError(text, why="Kafka refused.", remedy="See Kafka's own text above; nothing was skipped.")
