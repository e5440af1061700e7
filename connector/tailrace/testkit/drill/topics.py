"""The topics of a drill: reading them as consumers do, and removing them."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from tailrace.config.model import PipelineSettings
from tailrace.errors import KafkaUnavailable
from tailrace.kafka.client import KafkaOptions, admin_config
from tailrace.positions.base import Position
from tailrace.testkit.drill.connector import plain_host
from tailrace.testkit.drill.plan import DrillPlan
from tailrace.testkit.oracle import ConsumedRecord
from tailrace.testkit.stack.waiting import wait_until
from tailrace.testkit.topic_reader import RecordReader, consumed_records, positions_of
from tailrace.worker.options import kafka_options, own_topics

REQUEST_SECONDS = 15.0
REMOVE_SECONDS = 60.0


class DrillTopics:
    """The topics of the scratch pipeline. `settings` are those of the scratch pipeline."""

    def __init__(self, settings: PipelineSettings, plan: DrillPlan) -> None:
        self._options: KafkaOptions = kafka_options(settings)
        self._plan = plan
        self._all = sorted({plan.events, *own_topics(self._options)})
        self._readers: dict[str, RecordReader] = {}

    def addresses(self) -> list[tuple[str, int]]:
        """Returns the addresses of all brokers, as connections show them."""
        brokers = [(broker.host, broker.port) for broker in self._cluster().brokers.values()]
        first = [self._split(each) for each in self._options.bootstrap.split(",")]
        found = set()
        for host, port in (*brokers, *first):
            for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                found.add((plain_host(str(address[0])), port))
        return sorted(found)

    def published(self) -> list[ConsumedRecord]:
        return consumed_records(self._reader(self._plan.events).more())

    def dead_lettered(self) -> list[ConsumedRecord]:
        return consumed_records(self._reader(self._plan.dead_letters).more())

    def positions(self) -> Sequence[Position]:
        return positions_of(self._reader(self._plan.offsets).more(), self._plan.name)

    def remove(self) -> list[str]:
        """Deletes the topics of this or an earlier drill; returns which existed."""
        self.close()
        left = [topic for topic in self._all if topic in self._cluster().topics]
        if left:
            admin = self._admin()
            for deleted in admin.delete_topics(left).values():
                deleted.result(REQUEST_SECONDS)
            wait_until(
                lambda: not set(left) & self._cluster().topics.keys(), REMOVE_SECONDS, what="the end of the topics"
            )
        return [f"topic {topic}" for topic in left]

    def close(self) -> None:
        for reader in self._readers.values():
            reader.__exit__()
        self._readers.clear()

    def _reader(self, topic: str) -> RecordReader:
        if topic not in self._readers:
            self._readers[topic] = RecordReader(
                self._options.bootstrap, [topic], settings=admin_settings(self._options)
            )
        return self._readers[topic]

    def _admin(self) -> AdminClient:
        return AdminClient({**admin_config(self._options), "log_level": 0})

    def _cluster(self) -> ClusterMetadata:
        try:
            return self._admin().list_topics(timeout=REQUEST_SECONDS)
        except KafkaException as error:
            raise KafkaUnavailable(
                f"Kafka ({self._options.bootstrap}) cannot be reached", why=str(error.args[0].str()),
                remedy="Check it with `tailrace check`.",
            ) from None  # fmt: skip

    @staticmethod
    def _split(address: str) -> tuple[str, int]:
        host, _, port = address.strip().rpartition(":")
        return host.strip("[]"), int(port)


def admin_settings(options: KafkaOptions) -> dict[str, str | int | float | bool]:
    """Returns the user's settings that a reader understands."""
    allowed = admin_config(options)
    return {name: value for name, value in options.settings.items() if name in allowed}
