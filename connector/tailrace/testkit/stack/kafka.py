"""`KafkaBroker` and `KafkaCluster`: a real Kafka (KRaft) of one or three nodes for the demo, tests and benchmarks.

A local broker can be killed, stopped, restarted on the same data and ports, and paused. Clients use `bootstrap`; with
`advertised_port` that is the port of a proxy which the caller puts in front of `port`. The broker is ready when it
lists itself in its own metadata, under our cluster id.

`KafkaCluster` has three brokers, for tests in which one broker hangs or dies while the others go on. Each member can be
killed, paused and restarted on its own. Topics have three replicas and need two of them. Each member is broker and
controller, so any one of them may be down.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tailrace.testkit.stack import containers, kafka_local
from tailrace.testkit.stack.kafka_local import VARIABLE, Listeners
from tailrace.testkit.stack.paths import Progress, new_run_dir, quiet
from tailrace.testkit.stack.ports import HOST
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.stack.server import START_TIMEOUT, ServerChoice, ServerGroup, StackServer, choose
from tailrace.testkit.stack.waiting import StackError, wait_until

REQUEST_TIMEOUT = 2.0
CREATE_TIMEOUT = 30.0

CLUSTER_SIZE = 3
REPLICATED: Mapping[str, str] = {
    "default.replication.factor": str(CLUSTER_SIZE),
    "min.insync.replicas": str(CLUSTER_SIZE - 1),
    "offsets.topic.replication.factor": str(CLUSTER_SIZE),
    "transaction.state.log.replication.factor": str(CLUSTER_SIZE),
    "transaction.state.log.min.isr": str(CLUSTER_SIZE - 1),
    # Controllers elect a leader before the authorizer can read any ACL.
    "super.users": "User:ANONYMOUS",
}


def quiet_admin(bootstrap: str) -> AdminClient:
    """Returns an admin client that reconnects soon and does not log that a broker is unreachable."""
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        "log_level": 0,
        "error_cb": lambda _error: None,
    }
    return AdminClient(config)


class KafkaBroker(StackServer):
    """A broker with `properties` in addition to ours; started on entering."""

    NAME = "Kafka"
    VARIABLE = VARIABLE

    def __init__(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        advertised_port: int | None = None,
        heap: str = "512m",
        choice: ServerChoice = ServerChoice.AUTO,
        progress: Progress = quiet,
    ) -> None:
        super().__init__(*choose(choice, VARIABLE), progress)
        self.properties = dict(properties or {})
        self.cluster_id = ""
        self._advertised_port = advertised_port
        self._heap = heap
        self._listeners: Listeners | None = None
        self._library = self._warm = Path()

    @property
    def bootstrap(self) -> str:
        """The address for clients: the proxy's, if there is one."""
        if self.choice is ServerChoice.ADDRESS:
            return self._address
        host = self._container.host if self._container else HOST
        return f"{host}:{self._advertised_port or self.port}"

    @property
    def direct_bootstrap(self) -> str:
        """An address that bypasses any proxy."""
        if self._container:
            return f"{self._container.host}:{self._container.port}"
        return f"{HOST}:{self._listeners.internal}" if self._listeners else self.bootstrap

    @property
    def port(self) -> int:
        """The port that clients connect to: what a proxy must point to."""
        if self._container:
            return self._container.port
        if self._listeners is None:
            raise StackError("this Kafka has no port yet", remedy="start it, with choice=ServerChoice.LOCAL")
        return self._listeners.client

    def admin(self) -> AdminClient:
        """Returns an admin client that bypasses any proxy. Keep it until its futures are done: they need it."""
        return quiet_admin(self.direct_bootstrap)

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Creates a topic; returns when clients can see it."""
        admin = self.admin()
        topic = NewTopic(name, partitions, 1, config=dict(config or {}))
        for created in admin.create_topics([topic]).values():
            created.result(CREATE_TIMEOUT)
        # The controller has it. The broker reads it from the controller's log a moment later.
        wait_until(lambda: name in admin.list_topics(timeout=CREATE_TIMEOUT).topics, CREATE_TIMEOUT, what=name)

    def prepare(self) -> None:
        """Fetches what a local broker needs into the cache, if it is not there yet."""
        if self.local:
            self._warm = kafka_local.warm_up(self._train, self._progress)
            self._library = kafka_local.jars(self._progress)

    def _create(self) -> None:
        self._progress(f"starting Kafka {kafka_local.KAFKA}")
        self._process = LocalProcess("kafka", new_run_dir("kafka", None), stop_signal=signal.SIGTERM)
        self.cluster_id = kafka_local.new_id()

    def _assign_ports(self) -> Sequence[int]:
        self._listeners = ports = self._draw_ports()
        # A broker that failed to bind has registered itself. On unused data nothing waits for that session to expire.
        shutil.rmtree(self.data_dir, ignore_errors=True)
        kafka_local.copy_data(self._warm / "data", self.data_dir, self.cluster_id, ports.node_id)
        self._configure()
        return [ports.client, ports.internal, ports.controller]

    def _draw_ports(self) -> Listeners:
        return Listeners(self._advertised_port)

    @property
    def _config(self) -> Path:
        return self.process.run_dir / "server.properties"

    def _configure(self) -> None:
        if self._listeners is not None:
            kafka_local.write_config(self._config, self.data_dir, self._listeners, self.properties)

    def _launch(self, *flags: str) -> None:
        flags = flags or (f"-XX:AOTCache={self._warm / 'classes.aot'}",)
        argv = kafka_local.command(self._library, self._heap, "kafka.Kafka", self._config, flags=flags)
        self.process.launch(argv, {})

    def _train(self, library: Path, folder: Path) -> None:
        """Fills the warm-up cache: formats a data directory, runs a broker on it once and stops it."""
        self._library = library
        self._create()
        try:
            self._listeners = Listeners(None)
            self._configure()
            kafka_local.format_data(self.process, library, self._config, self.cluster_id)
            (folder / "data").mkdir()
            for file in self.data_dir.iterdir():
                (folder / "data" / file.name).write_bytes(file.read_bytes())
            self._launch(f"-XX:AOTCacheOutput={folder / 'classes.aot'}")
            self._await_ready()
            # Java writes the class cache after the broker has shut down, which takes several seconds.
            self.process.stop(timeout=120)
        finally:
            self.close()

    def _start_container(self) -> containers.RunningContainer:
        properties = {**kafka_local.DEFAULTS, **self.properties}
        return containers.start_kafka(properties, self._advertised_port)

    def _not_ready(self) -> str | None:
        # Both listeners of a local broker: it opens one after the other, and may fail at the second.
        listeners = {self.direct_bootstrap, f"{HOST}:{self.port}"} if self.local else {self.direct_bootstrap}
        for address in sorted(listeners):
            try:
                # A new client each time: after the first metadata it would connect to the advertised proxy.
                metadata = quiet_admin(address).list_topics(timeout=REQUEST_TIMEOUT)
            except KafkaException as exc:
                return str(exc.args[0].str())
            # Another broker may have taken the port first: only our own cluster id counts.
            if self.local and metadata.cluster_id != self.cluster_id:
                return f"the broker at {address} belongs to cluster {metadata.cluster_id}"
            if not metadata.brokers:
                return f"the broker at {address} is not in its own metadata yet"
            self.cluster_id = metadata.cluster_id or ""
        return None


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
        ports = [Listeners(None, number) for number in range(1, CLUSTER_SIZE + 1)]
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
            lambda: len(admin.list_topics(timeout=REQUEST_TIMEOUT).brokers) == CLUSTER_SIZE,
            START_TIMEOUT,
            what="brokers that know each other",
        )

    def leader(self, topic: str, partition: int = 0) -> ClusterMember:
        """Returns the current leader of a partition."""
        found = self.admin().list_topics(topic, timeout=START_TIMEOUT).topics[topic].partitions[partition].leader
        return next(member for member in self.members if member.node_id == found)
