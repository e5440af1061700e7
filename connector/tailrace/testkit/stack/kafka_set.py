"""`KafkaSet`: a cluster of three brokers, for tests of a broker that hangs or dies while the others go on.

Its members are servers of ours: each can be killed, paused and started again on its own. Topics have three replicas and
need two of them, and each member is broker and controller, so any one of them may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from confluent_kafka.admin import AdminClient

from tailrace.testkit.stack import kafka_local
from tailrace.testkit.stack.cache import Progress, quiet
from tailrace.testkit.stack.kafka import ASK_TIMEOUT, KafkaBroker, quiet_admin
from tailrace.testkit.stack.kafka_local import Listeners
from tailrace.testkit.stack.server_choice import ServerChoice
from tailrace.testkit.stack.waiting import wait_until

SIZE = 3
START_TIMEOUT = 60.0
REPLICATED: Mapping[str, str] = {
    "default.replication.factor": str(SIZE),
    "min.insync.replicas": str(SIZE - 1),
    "offsets.topic.replication.factor": str(SIZE),
    "transaction.state.log.replication.factor": str(SIZE),
    "transaction.state.log.min.isr": str(SIZE - 1),
    # Controllers elect a leader before there is anything that the authorizer could read ACLs from.
    "super.users": "User:ANONYMOUS",
}


class ClusterMember(KafkaBroker):
    """One of the set; its ports are drawn with those of the others."""

    def __init__(
        self, ports: Listeners, cluster_id: str, properties: Mapping[str, str], heap: str, progress: Progress
    ) -> None:
        super().__init__(properties=properties, heap=heap, choice=ServerChoice.LOCAL, progress=progress)
        self._ports = ports
        self._set_id = cluster_id

    @property
    def node_id(self) -> int:
        return self._ports.node_id

    def _create(self) -> None:
        super()._create()
        self.cluster_id = self._set_id

    def _draw_ports(self) -> Listeners:
        return self._ports


class KafkaCluster:
    """Three brokers on this machine; started on entering."""

    def __init__(
        self, *, properties: Mapping[str, str] | None = None, heap: str = "256m", progress: Progress = quiet
    ) -> None:
        ports = [Listeners(None, number) for number in range(1, SIZE + 1)]
        for each in ports:
            each.voters = ports
        cluster_id = kafka_local.new_id()
        given = {**REPLICATED, **(properties or {})}
        self.members = [ClusterMember(each, cluster_id, given, heap, progress) for each in ports]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """Names all members, so that any of them may be down."""
        return ",".join(member.bootstrap for member in self.members)

    def admin(self) -> AdminClient:
        return quiet_admin(self.bootstrap)

    def start(self) -> None:
        """Start all; returns when they know each other."""
        self.members[0].prepare()
        with ThreadPoolExecutor(SIZE) as pool:
            for started in [pool.submit(member.start) for member in self.members]:
                started.result()
        admin = self.admin()
        wait_until(
            lambda: len(admin.list_topics(timeout=ASK_TIMEOUT).brokers) == SIZE,
            START_TIMEOUT,
            what="brokers that know each other",
        )

    def leader(self, topic: str, partition: int = 0) -> ClusterMember:
        """Who leads a partition now."""
        found = self.admin().list_topics(topic, timeout=START_TIMEOUT).topics[topic].partitions[partition].leader
        return next(member for member in self.members if member.node_id == found)

    def close(self) -> None:
        """End all members and remove all they wrote."""
        with ThreadPoolExecutor(SIZE) as pool:
            for closed in [pool.submit(member.close) for member in self.members]:
                closed.result()
