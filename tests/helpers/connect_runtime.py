"""`ConnectRuntime`: a real worker of Kafka Connect, from Maven, to compare answers with."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2

from helpers.fetched import connect_jars
from tailrace.testkit.stack import KafkaBroker, wait_until
from tailrace.testkit.stack.kafka_local import java
from tailrace.testkit.stack.ports import free_port

FILE_SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"


class ConnectRuntime:
    """One worker of Kafka Connect in distributed mode, with topics of its own. It can be started again."""

    OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

    def __init__(
        self,
        kafka: KafkaBroker,
        folder: Path,
        *,
        jars: Path | None = None,
        settings: Mapping[str, str] | None = None,
        java_options: Sequence[str] = OPTIONS,
    ) -> None:
        """`jars` is a folder with the worker and its connectors; `settings` replace or add to the worker's."""
        folder.mkdir(exist_ok=True)
        self._jars = jars
        self._java_options = java_options
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        name = f"connect-{uuid.uuid4().hex[:8]}"
        stores = {f"{store}.storage.topic": f"{name}-{store}" for store in ("config", "offset", "status")}
        replicas = {f"{store}.storage.replication.factor": "1" for store in ("config", "offset", "status")}
        properties = {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": name,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "listeners": self.url,
            "plugin.discovery": "service_load",
            "offset.flush.interval.ms": "1000",
            **stores,
            **replicas,
            **(settings or {}),
        }
        self.offsets_topic = properties["offset.storage.topic"]
        self._config = folder / "connect.properties"
        self._config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        self.log = folder / "connect.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        jars = ":".join(map(str, sorted((self._jars or connect_jars()).glob("*.jar"))))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(java()), *self._java_options, "-cp", jars, main, str(self._config)],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(self._answers, 240, what="Kafka Connect")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kills the process with SIGKILL, and waits for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Shuts the worker down: tasks stop, and their offsets are stored."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(60)

    def check(self) -> None:
        """Raises if the worker has ended."""
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-4000:]

    def _answers(self) -> bool:
        self.check()
        try:
            return httpx2.get(f"{self.url}/connectors", timeout=5).status_code == 200
        except httpx2.TransportError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
