"""`KafkaCluster`: three brokers, for tests in which one broker hangs or dies while the others go on.

Each member can be killed, paused and restarted on its own. Topics have three replicas and need two of them. Each member
is broker and controller, so any one of them may be down.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from tailrace.testkit.stack import kafka_local
from tailrace.testkit.stack.kafka import REQUEST_TIMEOUT, KafkaBroker, quiet_admin
from tailrace.testkit.stack.kafka_local import Listeners
from tailrace.testkit.stack.paths import Progress, quiet
from tailrace.testkit.stack.server import START_TIMEOUT, ServerChoice, ServerGroup
from tailrace.testkit.stack.waiting import wait_until

SIZE = 3
REPLICATED: Mapping[str, str] = {
    "default.replication.factor": str(SIZE),
    "min.insync.replicas": str(SIZE - 1),
    "offsets.topic.replication.factor": str(SIZE),
    "transaction.state.log.replication.factor": str(SIZE),
    "transaction.state.log.min.isr": str(SIZE - 1),
    # Controllers elect a leader before the authorizer can read any ACL.
    "super.users": "User:ANONYMOUS",
}


class ClusterMember(KafkaBroker):
    """One broker of the cluster; its ports are drawn together with those of the others."""

    def __init__(
        self, ports: Listeners, cluster_id: str, properties: Mapping[str, str], heap: str, progress: Progress
    ) -> None:
        super().__init__(properties=properties, heap=heap, choice=ServerChoice.LOCAL, progress=progress)
        self._ports = ports
        self._shared_id = cluster_id

    @property
    def node_id(self) -> int:
        return self._ports.node_id

    def _create(self) -> None:
        super()._create()
        self.cluster_id = self._shared_id

    def _draw_ports(self) -> Listeners:
        return self._ports


class KafkaCluster(ServerGroup):
    """Three local brokers; started on entering."""

    def __init__(
        self, *, properties: Mapping[str, str] | None = None, heap: str = "256m", progress: Progress = quiet
    ) -> None:
        ports = [Listeners(None, number) for number in range(1, SIZE + 1)]
        for each in ports:
            each.voters = ports
        cluster_id = kafka_local.new_id()
        given = {**REPLICATED, **(properties or {})}
        self.members = [ClusterMember(each, cluster_id, given, heap, progress) for each in ports]

    @property
    def servers(self) -> list[ClusterMember]:
        return self.members

    @property
    def bootstrap(self) -> str:
        """The addresses of all members, so that any of them may be down."""
        return ",".join(member.bootstrap for member in self.members)

    def admin(self) -> AdminClient:
        return quiet_admin(self.bootstrap)

    def start(self) -> None:
        """Starts all brokers; returns when they know each other."""
        self.members[0].prepare()
        super().start()

    def _connect(self) -> None:
        admin = self.admin()
        wait_until(
            lambda: len(admin.list_topics(timeout=REQUEST_TIMEOUT).brokers) == SIZE,
            START_TIMEOUT,
            what="brokers that know each other",
        )

    def leader(self, topic: str, partition: int = 0) -> ClusterMember:
        """Returns the current leader of a partition."""
        found = self.admin().list_topics(topic, timeout=START_TIMEOUT).topics[topic].partitions[partition].leader
        return next(member for member in self.members if member.node_id == found)
