"""`ConnectRuntime`: a real worker of Kafka Connect, from Maven, to compare answers with."""

from __future__ import annotations

import subprocess
import uuid
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
    """One worker of Kafka Connect in distributed mode, with topics of its own."""

    def __init__(self, kafka: KafkaBroker, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
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
        }
        self._config = folder / "connect.properties"
        self._config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        self.log = folder / "connect.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        jars = ":".join(map(str, sorted(connect_jars().glob("*.jar"))))
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars]
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(java()), *options, main, str(self._config)], stdout=log, stderr=subprocess.STDOUT
            )
        wait_until(self._answers, 180, what="Kafka Connect")
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-4000:]
        try:
            return httpx2.get(f"{self.url}/connectors", timeout=5).status_code == 200
        except httpx2.TransportError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
