"""Settings of Kafka clients, and the one table that maps librdkafka's errors to ours.

librdkafka has four classes of errors: retriable, requires-abort, fatal, and unflagged, which counts as fatal. After
anything but a clean commit the producer is discarded and the stored position is read again, which shows what happened.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from tailrace.auth import tokens
from tailrace.connection_causes import certificate_error, out_of_files
from tailrace.errors import (
    ConfigError,
    Fenced,
    KafkaUnavailable,
    OutcomeUnknown,
    PublishError,
    TailraceError,
    TokenUnavailable,
    TopicMissing,
    TopicRefused,
)
from tailrace.kafka.topic_limits import BATCH_BYTES

TRANSACTION_TIMEOUT_MS = 60_000
"""A hanging transaction holds back every reader of its partitions until this passes, so it stays short."""
MESSAGE_TIMEOUT_MS = 30_000
"""Must be below the transaction's timeout: a message that times out must still have a transaction to abort."""
SOCKET_TIMEOUT_MS = 8_000
"""For the answer to a request of the publisher. By default others replace a hanging broker after 9 s
(`broker.session.timeout.ms`); requests to it must then be sent again, and not only after a minute."""
SETUP_TIMEOUT_MS = 5_000
"""For a new connection, login included: the kernel of a broker that hangs still accepts connections."""
METADATA_MS = 3_000
"""How soon a partition's new leader is known if no request to the old one fails."""
METADATA_AGE_MS = 180_000
"""After that, topics count as unknown. By default three refreshes, which a hanging broker may leave unanswered."""
RECONNECT_MS = 2_000
"""The longest pause before a client connects again to a broker that was unavailable."""
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""The client's own limit. Topics set the real one; dead letters may be larger than any event."""

Setting = str | int | float | bool
Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """How to reach Kafka, and the topics of a pipeline; the settings of the same names."""

    bootstrap: str
    pipeline: str
    exactly_once: bool = True
    offsets_topic: str = "tailrace-offsets"
    dead_letter_topic: str = ""
    internal_replication: int = -1
    settings: Mapping[str, Setting] = field(default_factory=dict, repr=False)
    auth: tokens.TokenProvider | None = field(default=None, repr=False)
    """Where the clients get the tokens that they log in with."""


_log = logging.getLogger("librdkafka")
KAFKA_TLS = "ssl.ca.location, ssl.certificate.location and ssl.key.location under kafka.settings"


def common_config(options: KafkaOptions) -> Config:
    """Settings of every client: those of the user, with ours on top."""
    return {
        # Defaults a user may change:
        "socket.connection.setup.timeout.ms": SETUP_TIMEOUT_MS,
        "api.version.request.timeout.ms": SETUP_TIMEOUT_MS,
        "topic.metadata.refresh.interval.ms": METADATA_MS,
        "metadata.max.age.ms": METADATA_AGE_MS,
        "reconnect.backoff.max.ms": RECONNECT_MS,
        **login_config(options.auth),
        **options.settings,
        "bootstrap.servers": options.bootstrap,
        "client.id": f"tailrace-{options.pipeline}",
        "logger": _log,
    }


def login_config(provider: tokens.TokenProvider | None) -> Config:
    """Settings of a client that logs in with tokens. It asks for a new one before the last one expires."""
    if provider is None:
        return {}
    return {"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": partial(_token, provider)}


def security_protocol(options: KafkaOptions) -> str:
    """Returns the protocol of the clients, in small letters."""
    config = {**login_config(options.auth), **options.settings}
    return str(config.get("security.protocol", "plaintext")).lower()


def require_token(options: KafkaOptions) -> None:
    """Raises TokenUnavailable or TokenRefused if clients log in with tokens and there is none.

    Called before a client is created: the client would wait ten seconds, and only say that it has no token.
    """
    if options.auth is not None:
        tokens.current(options.auth)


def _token(provider: tokens.TokenProvider, _config: str) -> tuple[str, float, str, dict[str, str]]:
    token = tokens.current(provider)
    return token.value, token.expires_at, token.principal, dict(token.extensions)


# Settings that only a producer understands would make a consumer warn on each start.
_PRODUCER_ONLY = (
    "acks", "batch.", "compression.", "delivery.", "linger.", "message.timeout", "partitioner", "queue.buffering",
    "transaction.", "sticky.", "max.in.flight",
)  # fmt: skip


def admin_config(options: KafkaOptions) -> Config:
    shared = {name: value for name, value in options.settings.items() if not name.startswith(_PRODUCER_ONLY)}
    return common_config(replace(options, settings=shared))


def consumer_config(options: KafkaOptions, group: str) -> Config:
    """Settings of a consumer that reads committed records only and never commits offsets."""
    return {
        **admin_config(options),
        "group.id": group,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": False,
        "fetch.wait.max.ms": 50,  # or the end of a quiet topic takes half a second to find
        "fetch.queue.backoff.ms": 10,  # or a reader whose queue was full for a moment waits for a second
    }


def producer_config(options: KafkaOptions, *, batch_bytes: int | None = None) -> Config:
    """Settings of the publisher. `batch_bytes`: the largest batch that the topics accept."""
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
        # The guarantees depend on these:
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
            # librdkafka rejects one that is longer than the transaction's.
            config["socket.timeout.ms"] = min(SOCKET_TIMEOUT_MS, int(config["transaction.timeout.ms"]))
        config["transactional.id"] = options.pipeline
    return config


def batch_size(options: KafkaOptions) -> int:
    """The size of record batches, unless topics accept less."""
    return int(options.settings.get("batch.size", BATCH_BYTES))


def write_record(options: KafkaOptions, topic: str, key: bytes, value: bytes | None, timeout: float) -> None:
    """Writes one record outside any transaction; KafkaException if Kafka does not confirm it in time."""
    failed: list[KafkaError] = []
    producer = Producer({**admin_config(options), "message.timeout.ms": int(timeout * 1000)})
    producer.produce(topic, value, key, on_delivery=lambda error, _: failed.append(error) if error else None)
    if producer.flush(timeout) or failed:
        raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))


def require_usable(options: KafkaOptions) -> None:
    """Raises ConfigError for settings that the publisher's client rejects; an admin client does not get them.

    Asks for no token: this happens before a pipeline runs, and a token server may be unavailable.
    """
    if options.auth is not None:
        login = {name: value for name, value in login_config(options.auth).items() if name != "oauth_cb"}
        options = replace(options, auth=None, settings={**login, **options.settings})
    config = producer_config(options)
    # Without it this producer cannot fence anything.
    config.pop("transactional.id", None)
    try:
        Producer(config)
        Consumer(consumer_config(options, "tailrace-check")).close()
    except KafkaException as error:
        raise unusable(error) from None


def unusable(error: KafkaException) -> TailraceError:
    """The error for a client that cannot be created: wrong settings, or no memory or thread for it."""
    if error_of(error).code() == KafkaError._CRIT_SYS_RESOURCE:
        return KafkaUnavailable(
            f"the Kafka client cannot be started: {error_of(error).str()}",
            why=out_of_files() or "The process gets no more memory or threads.",
            remedy="Raise its limits (ulimit, the container's memory). Tailrace retries by itself.",
        )
    return ConfigError(
        f"the Kafka client rejects its settings: {error_of(error).str()}",
        why="librdkafka does not know a name or a value under kafka.settings.",
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
    "outside what the topic accepts (message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
    KafkaError.INVALID_RECORD: "the topic demands something the record lacks, such as a key (compacted topics)",
    KafkaError.POLICY_VIOLATION: "a broker policy forbids the record",
    KafkaError.TOPIC_EXCEPTION: "it is not a legal topic to write to",
}
_FORBIDDING = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Grant Write and Describe on the transactional id.",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Grant IdempotentWrite on the cluster.",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Grant Describe on the consumer groups whose names begin with tailrace-.",
    KafkaError.SASL_AUTHENTICATION_FAILED: "Check the SASL settings under kafka.settings, or kafka.auth.",
    KafkaError._AUTHENTICATION: "Check the SASL settings under kafka.settings, or kafka.auth.",
    KafkaError._SSL: "Check the TLS settings under kafka.settings.",
    KafkaError.UNSUPPORTED_VERSION: "Exactly-once needs Kafka 2.5 or newer.",
}
_TLS = {KafkaError._SSL, KafkaError._TRANSPORT}
_NO_TOKEN = ("OAuth token not set", "Failed to acquire SASL OAUTHBEARER token")
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

# The error of a failed record has no flags, so those that only mean a lost transaction are listed.
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


def lacks_token(error: KafkaError) -> bool:
    """Whether the client has no valid token now; it asks for another one every ten seconds."""
    return any(said in error.str() for said in _NO_TOKEN)


def translate(error: KafkaError, doing: str, topic: str | None = None) -> TailraceError:
    """Maps an error of librdkafka to ours; `doing` says what was tried."""
    code, text = error.code(), f"{doing}: {error.str()}"
    if code in _FENCING:
        return Fenced(
            text,
            why="Another instance of this pipeline started, or this one was suspended beyond its transaction timeout.",
            remedy="If another instance runs, nothing needs to be done. Otherwise start this one again.",
        )
    if code in _MISSING:
        return TopicMissing(
            f"{doing}: there is no topic {topic}" if topic else text,
            why="It was deleted, or never created.",
            remedy="Create it, or let Tailrace create it on its next start (topics.create). No event was skipped.",
        )
    if code in _REFUSING:
        return TopicRefused(
            f"{doing}: the topic {topic or ''} rejects our records: {error.str()}",
            why=f"Probably {_REFUSING[code]}.",
            remedy="Fix the topic or the rights, then restart. No event was skipped.",
        )
    if code in _TLS and (invalid := certificate_error(text, "Kafka", KAFKA_TLS)) is not None:
        return invalid
    if lacks_token(error):
        return TokenUnavailable(
            text, why="The client has no valid token to log in with.", remedy="Check kafka.auth. Tailrace retries."
        )
    if code in _FORBIDDING:
        return PublishError(text, why="Kafka denies access.", remedy=_FORBIDDING[code])
    if code in _AWAY or error.retriable():
        why = out_of_files() or "Kafka is unavailable or too slow."
        return KafkaUnavailable(text, why=why, remedy="Tailrace retries by itself.")
    if error.txn_requires_abort() or error.fatal() or code in _UNDECIDED:
        return OutcomeUnknown(
            text,
            why="This producer does not know the outcome of the transaction.",
            remedy="Tailrace builds a new producer and reads the offsets topic, by itself.",
        )
    return PublishError(
        text, why="Kafka rejected the request.", remedy="See Kafka's own text above. No event was skipped."
    )
