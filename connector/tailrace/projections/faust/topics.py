"""Kafka requests besides reading: the dead-letter topic, offsets of topics, group members, broker certificates."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code
from aiokafka.structs import TopicPartition
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth, server_list

from tailrace.connection_causes import certificate_error
from tailrace.errors import TopicMissing
from tailrace.projections.core.store import Partition
from tailrace.projections.reader.connection import group_of

if TYPE_CHECKING:
    from tailrace.projections.faust.app import ProjectionApp

log = logging.getLogger("tailrace.projections")
RETENTION_DAYS = 30
HANDSHAKE_SECONDS = 10.0
MAX_REPLICAS = 3
"""Of the dead-letter topic, if the source topic does not exist yet."""


async def require_certificates(settings: Mapping[str, Any]) -> None:
    """Raises CertificateInvalid if a broker's certificate is not accepted; aiokafka only reports it as unavailable."""
    context: ssl.SSLContext | None = settings.get("ssl_context")
    for server in settings["bootstrap_servers"] if context else ():
        host, _, port = server.rpartition(":")
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port), ssl=context), HANDSHAKE_SECONDS)
        except ssl.SSLCertVerificationError as error:
            invalid = certificate_error(str(error), f"Kafka at {server}", "the ssl context of broker_credentials")
            if invalid is not None:
                raise invalid from None
        except (OSError, TimeoutError):
            pass  # unavailable for another reason
        else:
            writer.close()


def connection(app: ProjectionApp) -> dict[str, Any]:
    """Returns the app's connection settings as arguments for aiokafka."""
    return {
        "bootstrap_servers": server_list(app.conf.broker_consumer, app.transport.default_port),  # type: ignore[attr-defined]
        **credentials_to_aiokafka_auth(app.conf.broker_credentials, app.conf.ssl_context),
    }


async def ensure_dead_letter_topic(app: ProjectionApp, topic: str, sources: Sequence[str]) -> None:
    """Creates the dead-letter topic if it is missing, with as many replicas as the first of `sources`.

    Source topics that do not exist yet are only logged: their producer may create them later.
    """
    admin = AIOKafkaAdminClient(**connection(app))
    await admin.start()
    try:
        known = await admin.list_topics()
        missing = sorted(set(sources) - set(known))
        if missing:
            log.warning("waiting for topics that do not exist", extra={"fields": {"topics": ", ".join(missing)}})
        if topic in known:
            return
        replicas = await _replicas(admin, sources[0])
        wanted = NewTopic(topic, 1, replicas, topic_configs={"retention.ms": str(RETENTION_DAYS * 86_400_000)})
        answer = await admin.create_topics([wanted])
    finally:
        await admin.close()
    for name, code, message in answer.topic_errors:
        error = for_code(code)
        if code and error is not TopicAlreadyExistsError:
            raise TopicMissing(
                f"the topic {name} for dead letters does not exist, and cannot be created: {error.__name__}",
                why=str(message or ""),
                remedy=f"Create it ({RETENTION_DAYS} days of retention are usual), or allow the user to create it.",
            )


async def _replicas(admin: AIOKafkaAdminClient, topic: str) -> int:
    for description in await admin.describe_topics([topic]):
        for partition in description["partitions"]:
            return len(partition["replicas"])
    return min(MAX_REPLICAS, len((await admin.describe_cluster())["brokers"]))


class ProjectionTopics:
    """Asks Kafka about the topics of a projection."""

    def __init__(self, app: ProjectionApp, topics: tuple[str, ...]) -> None:
        self._group = group_of(str(app.conf.id))
        self._names = topics
        self._connection = connection(app)

    async def __aenter__(self) -> ProjectionTopics:
        self._consumer = AIOKafkaConsumer(*self._names, isolation_level="read_committed", **self._connection)
        await self._consumer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()

    async def members(self) -> int:
        """Returns how many workers the consumer group has."""
        admin = AIOKafkaAdminClient(**self._connection)
        await admin.start()
        try:
            answers = await admin.describe_consumer_groups([self._group])
        finally:
            await admin.close()
        return sum(len(group[5]) for answer in answers for group in answer.groups)

    async def offsets(self, to: str | int) -> dict[Partition, int]:
        """Returns an offset for each partition: its beginning, its end, or the first record at or after a time."""
        known = [
            TopicPartition(topic, number)
            for topic in self._names
            for number in sorted(self._consumer.partitions_for_topic(topic) or ())
        ]
        if to == "earliest":
            found = await self._consumer.beginning_offsets(known)
            return {Partition(*each): offset for each, offset in found.items()}
        ends = await self._consumer.end_offsets(known)
        offsets = {Partition(*each): offset for each, offset in ends.items()}
        if isinstance(to, int):
            at = await self._consumer.offsets_for_times(dict.fromkeys(known, to))
            offsets |= {Partition(*each): found.offset for each, found in at.items() if found is not None}
        return offsets
