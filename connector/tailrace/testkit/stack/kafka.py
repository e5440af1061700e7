"""`KafkaBroker`: a real Kafka (one node, KRaft) for the demo, the tests and the benchmark.

A context manager like `PostgresServer`, with the same powers when it is local: kill, stop, start again on the
same data and ports, pause. `bootstrap` is what clients use; with `advertised_port` that is the port of a
proxy the caller puts in front of `port`. It is ready when it names itself in its own metadata, under our
cluster id.
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
from tailrace.testkit.stack.cache import Progress, quiet
from tailrace.testkit.stack.errors import StackError
from tailrace.testkit.stack.kafka_local import Listeners
from tailrace.testkit.stack.paths import new_run_dir
from tailrace.testkit.stack.ports import HOST
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.stack.server import StackServer
from tailrace.testkit.stack.server_choice import ServerChoice, choose
from tailrace.testkit.stack.waiting import wait_until

VARIABLE = "TAILRACE_STACK_KAFKA"
VERSION = kafka_local.KAFKA
ASK_TIMEOUT = 2.0
CREATE_TIMEOUT = 30.0


def quiet_admin(bootstrap: str) -> AdminClient:
    """An admin client that reconnects soon and says nothing about a broker that is away."""
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        "log_level": 0,
        "error_cb": lambda _error: None,
    }
    return AdminClient(config)


class KafkaBroker(StackServer):
    """A broker with `properties` on top of ours; started on entering."""

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
        """The address for clients: the proxy's, when one was announced."""
        if self.choice is ServerChoice.ADDRESS:
            return self._address
        host = self._container.host if self._container else HOST
        return f"{host}:{self._advertised_port or self.port}"

    @property
    def direct_bootstrap(self) -> str:
        """An address that goes past any proxy."""
        if self._container:
            return f"{self._container.host}:{self._container.port}"
        return f"{HOST}:{self._listeners.internal}" if self._listeners else self.bootstrap

    @property
    def port(self) -> int:
        """The port that clients' connections arrive at: what a proxy must point to."""
        if self._container:
            return self._container.port
        if self._listeners is None:
            raise StackError("this Kafka has no port of ours", remedy="start it, with source=Source.LOCAL")
        return self._listeners.client

    def admin(self) -> AdminClient:
        """An admin client past any proxy. Keep it while a result is awaited: the futures die with it."""
        return quiet_admin(self.direct_bootstrap)

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """A new topic; returns when clients can see it."""
        admin = self.admin()
        topic = NewTopic(name, partitions, 1, config=dict(config or {}))
        for created in admin.create_topics([topic]).values():
            created.result(CREATE_TIMEOUT)
        # The controller has it; the broker hears of it from the controller's log, a moment later.
        wait_until(lambda: name in admin.list_topics(timeout=CREATE_TIMEOUT).topics, CREATE_TIMEOUT, what=name)

    def prepare(self) -> None:
        """Fetch what a local broker needs into the cache; at once where that is done, and nothing to do elsewhere."""
        if self.local:
            self._warm = kafka_local.warm_up(self._train, self._progress)
            self._library = kafka_local.jars(self._progress)

    def _create(self) -> None:
        self._progress(f"starting Kafka {kafka_local.KAFKA}")
        self._process = LocalProcess("kafka", new_run_dir("kafka", None), stop_signal=signal.SIGTERM)
        self.cluster_id = kafka_local.new_id()

    def _settle(self) -> Sequence[int]:
        self._listeners = ports = self._draw_ports()
        # A broker that failed to bind has registered itself already: begin anew, or its session is waited for.
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
        """Fill the warm-up cache: format a data directory, then run a broker on it once and stop it."""
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
            self._await_answer()
            # Java writes the class cache after the broker has shut down; that takes several seconds.
            self.process.stop(timeout=120)
        finally:
            self.close()

    def _start_container(self) -> containers.RunningContainer:
        properties = {**kafka_local.DEFAULTS, **self.properties}
        return containers.start_kafka(properties, self._advertised_port)

    def _silence(self) -> str | None:
        # Both doors of a local broker: it opens them one by one, and may fail over the second.
        doors = {self.direct_bootstrap, f"{HOST}:{self.port}"} if self.local else {self.direct_bootstrap}
        for door in sorted(doors):
            try:
                # A new client each time: one that was told of a proxy in front would go there from then on.
                metadata = quiet_admin(door).list_topics(timeout=ASK_TIMEOUT)
            except KafkaException as exc:
                return str(exc.args[0].str())
            # Another broker may have been quicker to take the port: only our own cluster id counts.
            if self.local and metadata.cluster_id != self.cluster_id:
                return f"the broker at {door} is of cluster {metadata.cluster_id}"
            if not metadata.brokers:
                return f"the broker at {door} does not name itself yet"
            self.cluster_id = metadata.cluster_id or ""
        return None
