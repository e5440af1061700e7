"""Postgres, Kafka and MongoDB in Docker, started by testcontainers if an engine answers.

The images are the official ones, with the settings of our local servers. The reaper of testcontainers removes the
containers when our process dies. The caller checks readiness by the server's protocol, not by log texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.errors import install_remedy
from tailrace.testkit.stack.ports import free_port
from tailrace.testkit.stack.waiting import StackError

KAFKA_IMAGE = "apache/kafka:4.1.0"
MONGO_IMAGE = "mongo:7.0"
CLIENT_PORT = 9092
MONGO_PORT = 27017


@dataclass
class RunningContainer:
    """A container and its address."""

    container: Any
    host: str
    port: int

    def close(self) -> None:
        self.container.stop()


def start_postgres(version: str, password: str, settings: Mapping[str, str]) -> RunningContainer:
    container = _container(f"postgres:{version}")
    container.with_env("POSTGRES_PASSWORD", password)
    container.with_exposed_ports(5432)
    command = ["postgres"]
    for name, value in {"listen_addresses": "*", **settings}.items():
        command += ["-c", f"{name}={value}"]
    container.with_command(command)
    _start(container)
    return RunningContainer(container, container.get_container_host_ip(), int(container.get_exposed_port(5432)))


def start_kafka(properties: Mapping[str, str], advertised_port: int | None) -> RunningContainer:
    """Starts a broker on a port drawn here: it must know its outside address before it starts."""
    container = _container(KAFKA_IMAGE)
    port = free_port()
    host = container.get_container_host_ip()
    container.with_bind_ports(CLIENT_PORT, port)
    ours = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "INTERNAL",
        "listeners": f"CLIENT://:{CLIENT_PORT},INTERNAL://localhost:9094,CONTROLLER://localhost:9093",
        "advertised.listeners": f"CLIENT://{host}:{advertised_port or port},INTERNAL://localhost:9094",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    for name, value in {**properties, **ours}.items():
        container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
    _start(container)
    return RunningContainer(container, host, port)


def start_mongo(options: Sequence[str]) -> RunningContainer:
    container = _container(MONGO_IMAGE)
    container.with_exposed_ports(MONGO_PORT)
    container.with_command(["mongod", "--bind_ip_all", *options])
    _start(container)
    return RunningContainer(container, container.get_container_host_ip(), int(container.get_exposed_port(MONGO_PORT)))


def _container(image: str) -> Any:  # noqa: ANN401 - testcontainers has no types
    try:
        from testcontainers.core.container import DockerContainer
    except ImportError as exc:
        raise StackError(
            "testcontainers is not installed",
            remedy=f"{install_remedy('stack')}, or use another ServerChoice than DOCKER",
        ) from exc
    return DockerContainer(image)


def _start(container: Any) -> None:  # noqa: ANN401
    try:
        container.start()
    except Exception as exc:
        raise StackError(
            f"Docker could not start {container.image}",
            why=str(exc),
            remedy="check that the engine runs and can fetch the image, or use ServerChoice.LOCAL",
        ) from exc
