"""`KafkaBroker`: a real Kafka (one node, KRaft) for the demo, the tests and the benchmark.

A context manager like `PostgresServer`, with the same powers when it is local: kill, stop, start again on the
same data and ports, pause. `bootstrap` is what clients use; with `advertised_port` that is the port of a
proxy the caller puts in front of `port`. It is ready when it names itself in its own metadata, under our
cluster id.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tailrace.stack import containers, kafka_local
from tailrace.stack.cache import Progress, quiet
from tailrace.stack.errors import StackError
from tailrace.stack.kafka_local import Listeners
from tailrace.stack.places import new_run_dir
from tailrace.stack.ports import HOST, can_bind
from tailrace.stack.process import LocalProcess
from tailrace.stack.source import Source, choose
from tailrace.stack.waiting import wait_until

VARIABLE = "TAILRACE_STACK_KAFKA"
VERSION = kafka_local.KAFKA
START_TIMEOUT = 60.0  # recovery of logs after kill -9 reads every open segment
PORT_ATTEMPTS = 5
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


class KafkaBroker:
    """A broker with `properties` on top of ours; started on entering."""

    def __init__(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        advertised_port: int | None = None,
        heap: str = "512m",
        source: Source = Source.AUTO,
        progress: Progress = quiet,
    ) -> None:
        self.properties = dict(properties or {})
        self.source, self._address = choose(source, VARIABLE)
        self.cluster_id = ""
        self._advertised_port = advertised_port
        self._heap = heap
        self._progress = progress
        self._listeners: Listeners | None = None
        self._process: LocalProcess | None = None
        self._container: containers.Running | None = None
        self._library = self._warm = Path()

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
    def local(self) -> bool:
        """Whether it is a process of ours, to be killed and paused at will."""
        return self.source is Source.LOCAL

    @property
    def bootstrap(self) -> str:
        """The address for clients: the proxy's, when one was announced."""
        if self.source is Source.ADDRESS:
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

    @property
    def process(self) -> LocalProcess:
        """The process behind a local broker."""
        if self._process is None:
            raise StackError(
                "this Kafka is not a local one, or not started",
                remedy="start it with source=Source.LOCAL to get at its process",
            )
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def pids(self) -> list[int]:
        return self.process.pids

    @property
    def running(self) -> bool:
        return self.process.running

    @property
    def data_dir(self) -> Path:
        return self.process.run_dir / "data"

    @property
    def log(self) -> Path:
        return self.process.log

    def admin(self) -> AdminClient:
        """An admin client past any proxy. Keep it while a result is awaited: the futures die with it."""
        return quiet_admin(self.direct_bootstrap)

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """A new topic; returns when the controller has it."""
        admin = self.admin()
        topic = NewTopic(name, partitions, 1, config=dict(config or {}))
        for created in admin.create_topics([topic]).values():
            created.result(CREATE_TIMEOUT)

    def start(self) -> None:
        """Start, or start again after `stop` or `kill`: same data, same ports. Returns when it answers."""
        if self.source is Source.ADDRESS:
            self._await_answer()
        elif self.source is Source.DOCKER:
            self._start_container()
            self._await_answer()
        elif self._process is None:
            self.prepare()
            self._create()
            self._start_somewhere()
        else:
            self._launch()
            self._await_answer()

    def prepare(self) -> None:
        """Fetch what a local broker needs into the cache; at once where that is done, and nothing to do elsewhere."""
        if self.local:
            self._warm = kafka_local.warm_up(self._train, self._progress)
            self._library = kafka_local.jars(self._progress)

    def stop(self) -> None:
        """A controlled shutdown."""
        self.process.stop()

    def kill(self) -> None:
        """kill -9; returns when the process is gone."""
        self.process.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    def close(self) -> None:
        """End it and remove all it wrote. A broker named by its address is left alone."""
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._container is not None:
            self._container.close()
            self._container = None

    def let_go(self) -> None:
        """Let it live on when this process ends; `process.guardian_pid` is then who to ask to end it."""
        self.process.let_go()

    def _create(self) -> None:
        self._progress(f"starting Kafka {kafka_local.KAFKA}")
        self._process = LocalProcess("kafka", new_run_dir("kafka", None), stop_signal=signal.SIGTERM)
        self.cluster_id = kafka_local.new_id()

    def _start_somewhere(self) -> None:
        """First start: ports are ours only once the broker has bound them; others may have to be tried."""
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self._listeners = ports = Listeners(self._advertised_port)
            # A broker that failed to bind has registered itself already: begin anew, or its session is waited
            # for.
            shutil.rmtree(self.data_dir, ignore_errors=True)
            kafka_local.copy_data(self._warm / "data", self.data_dir, self.cluster_id)
            self._configure()
            self._launch()
            try:
                self._await_answer()
            except StackError:
                free = all(can_bind(port) for port in (ports.client, ports.internal, ports.controller))
                if attempt == PORT_ATTEMPTS or self.running or free:
                    raise
            else:
                return

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

    def _start_container(self) -> None:
        if self._container is not None:
            raise StackError("this Kafka in Docker is already running")
        self._progress("starting Kafka in Docker")
        properties = {**kafka_local.DEFAULTS, **self.properties}
        self._container = containers.start_kafka(properties, self._advertised_port)

    def _await_answer(self) -> None:
        last = ""
        # Both doors of a local broker: it opens them one by one, and may fail over the second.
        doors = {self.direct_bootstrap, f"{HOST}:{self.port}"} if self.local else {self.direct_bootstrap}
        waiting = sorted(doors)

        def answers() -> bool:
            nonlocal last
            if self._process is not None and not self._process.running:
                raise self._process.failure(
                    f"Kafka ended while it was starting (exit code {self._process.exit_code})",
                    remedy="the log says which property or file it stumbled over",
                )
            try:
                # A new client each time: one that was told of a proxy in front would go there from then on.
                metadata = quiet_admin(waiting[0]).list_topics(timeout=ASK_TIMEOUT)
            except KafkaException as exc:
                last = exc.args[0].str()
                return False
            # Another broker may have been quicker to take the port: only our own cluster id counts.
            known = not self.local or metadata.cluster_id == self.cluster_id
            if known and metadata.brokers:
                self.cluster_id = metadata.cluster_id or ""
                del waiting[0]
            return not waiting

        timeout = 5.0 if self.source is Source.ADDRESS else START_TIMEOUT
        try:
            wait_until(answers, timeout, what="an answer from Kafka")
        except StackError as exc:
            exc.why = exc.why or last
            exc.remedy = exc.remedy or f"see that it runs and that {VARIABLE} names it"
            raise
