"""The built distributions: sdists, wheels, installs in clean environments, and `tailrace demo` from the wheels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from tailrace.outbox.ddl import table_ddl

ROOT = Path(__file__).parents[2]
PARTS = (
    *("connector", "distributions", "schemas", "topics", "README.md", "LICENSE"),
    *("pyproject.toml", "setup.py", "MANIFEST.in", "constraints.txt"),
)
TIMEOUT = 600.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class CleanEnvironment:
    """A virtual environment that is isolated from the one the tests run in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=TIMEOUT)

    def run(self, program: str, *arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TAILRACE_"))}
        environ |= {"ORDERS_DB_PASSWORD": "unused", "USERS_DB_PASSWORD": "unused"}
        return subprocess.run(
            [self.folder / "venv" / "bin" / program, *arguments],
            cwd=cwd or self.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    def pip(self, *arguments: str | Path) -> None:
        done = self.run("python", "-m", "pip", "--disable-pip-version-check", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr

    def install(self, *requirements: str) -> None:
        self.pip("install", "--quiet", "-c", ROOT / "constraints.txt", *requirements)


class Wheels(NamedTuple):
    """The wheels of `tailrace-outbox`, which services install alone, and of `tailrace`."""

    outbox: Path
    connector: Path


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    return CleanEnvironment(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def wheels(clean: CleanEnvironment) -> Wheels:
    """Both wheels, built from their sdists as pip builds them."""
    source = clean.folder / "source"
    source.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / part, source / part)
    clean.pip("install", "--quiet", "setuptools>=70")
    outbox = build(clean, source / "distributions" / "outbox", {"connector/tailrace/errors.py", "modules.txt"})
    connector = build(clean, source, {"schemas/OrderPlaced/1.json", "topics/orders.yaml"})
    return Wheels(outbox, connector)


def build(clean: CleanEnvironment, source: Path, expected: set[str]) -> Path:
    """Builds the sdist of a folder, checks that it has the expected files, and builds the wheel from it."""
    built = clean.folder / "dist" / source.name
    script = f"from setuptools import build_meta; build_meta.build_sdist({str(built)!r})"
    done = clean.run("python", "-c", script, cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        assert expected <= {name.partition("/")[2] for name in packed.getnames()}
    clean.pip("wheel", "--quiet", "--no-deps", "--wheel-dir", built, sdist)
    [wheel] = built.glob("*.whl")
    return wheel


def test_the_wheels_share_the_modules_without_overlap(wheels: Wheels) -> None:
    outbox, connector = ({*zipfile.ZipFile(wheel).namelist()} for wheel in wheels)
    assert outbox & connector == set()
    modules = {str(file.relative_to(ROOT / "connector")) for file in (ROOT / "connector").rglob("*.py")}
    assert {name for name in outbox | connector if name.endswith(".py")} == modules
    assert {"tailrace/__init__.py", "tailrace/py.typed", "tailrace/schemas/validation.py"} <= outbox
    assert all(name.startswith(("tailrace/", "tailrace-", "tailrace_outbox-")) for name in outbox | connector)


def test_the_wheel_carries_the_folders_of_the_demo(wheels: Wheels) -> None:
    packed = zipfile.ZipFile(wheels.connector)
    for name in ("schemas", "topics"):
        files = {file.relative_to(ROOT / name) for file in (ROOT / name).rglob("*") if file.is_file()}
        assert files
        for file in files:
            assert packed.read(f"tailrace/testkit/demo/{name}/{file}") == (ROOT / name / file).read_bytes()


SERVICE = """
import importlib.util, pkgutil, sys
from pathlib import Path

import psycopg
import tailrace

for absent in ("confluent_kafka", "pydantic", "typer", "yaml", "tailrace.cli", "tailrace.config"):
    assert importlib.util.find_spec(absent) is None, absent
for module in pkgutil.walk_packages(tailrace.__path__, "tailrace."):
    if module.name != "tailrace.testkit.pytest":
        importlib.import_module(module.name)

from tailrace.errors import EventInvalid, SchemaError
from tailrace.outbox import Outbox

outbox = Outbox(layout="debezium", table="public.outbox", schemas="schemas")
with psycopg.connect(sys.argv[1]) as connection:
    print(outbox.add(connection, "OrderPlaced", {"order": "o-1"}, aggregate=("order", "o-1")).id)
    try:
        outbox.add(connection, "OrderPlaced", {"order": 1}, aggregate=("order", "o-1"))
    except EventInvalid as error:
        print(error.what)

for name, text in {"Broken.json": '{"type": "objekt"}', "Avro.avsc": '{"type": "string"}'}.items():
    Path("schemas", name).write_text(text)
    try:
        Outbox(schemas="schemas")
    except SchemaError as error:
        print(error.what)
    Path("schemas", name).unlink()
"""


def test_a_service_installs_the_small_distribution_alone(wheels: Wheels, tmp_path: Path, database: str) -> None:
    service = CleanEnvironment(tmp_path)
    service.install(f"tailrace-outbox[psycopg] @ {wheels.outbox.as_uri()}", "psycopg[binary]")
    schema = {"type": "object", "required": ["order"], "properties": {"order": {"type": "string"}}}
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "OrderPlaced.json").write_text(json.dumps(schema))
    with psycopg.connect(database) as connection:
        connection.execute(table_ddl("public.outbox"))
    done = service.run("python", "-c", SERVICE, database)
    assert done.returncode == 0, done.stdout + done.stderr
    event_id, explanation, broken, avro = done.stdout.splitlines()
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT id::text, type, aggregateid, payload FROM outbox").fetchall()
    assert rows == [(event_id, "OrderPlaced", "o-1", {"order": "o-1"})]
    assert "$.order" in explanation
    assert broken.startswith("schemas/Broken.json (#/type)")
    assert avro.startswith("schemas/Avro.avsc is an Avro schema")


def test_init_and_check_work_without_extras(clean: CleanEnvironment, wheels: Wheels, tmp_path: Path) -> None:
    remedies: dict[str, str] = {}

    def check(file: str, *options: str) -> dict[str, str]:
        """Runs `tailrace check` and returns the state of each check; the exit code is 1 if one failed."""
        done = clean.run("tailrace", "check", file, "--json", *options, cwd=tmp_path)
        checks = json.loads(done.stdout)["checks"]
        remedies.update({each["name"]: each["remedy"] for each in checks if each["remedy"]})
        states = {each["name"]: each["state"] for each in checks}
        assert done.returncode == ("FAIL" in states.values()), done.stdout + done.stderr
        return states

    clean.install(*map(str, wheels))
    for arguments in (["--name", "orders"], ["--name", "users", "--mongo"]):
        written = clean.run("tailrace", "init", *arguments, cwd=tmp_path)
        assert written.returncode == 0, written.stdout + written.stderr

    offline = check("orders.yaml", "--offline")
    assert offline == {"settings": "OK", "schemas": "OK", "topics": "OK"}

    for file in (tmp_path / "orders.yaml", tmp_path / "users.yaml"):
        text = file.read_text()
        for address in ("localhost:5432", "localhost:9092", "localhost:27017"):
            text = text.replace(address, "127.0.0.1:1")
        file.write_text(text)
    unreachable = check("orders.yaml")
    assert (unreachable["settings"], unreachable["postgres"], unreachable["kafka"]) == ("OK", "FAIL", "FAIL")
    assert "Start Postgres, or correct host and port in source.postgres." in remedies["postgres"]
    assert "correct kafka.bootstrap (127.0.0.1:1)" in remedies["kafka"]

    without_driver = check("users.yaml")
    assert (without_driver["settings"], without_driver["source"]) == ("OK", "FAIL")
    assert "[mongo]" in remedies["source"]


def test_the_demo_runs_from_the_wheels(clean: CleanEnvironment, wheels: Wheels, tmp_path: Path) -> None:
    clean.install(str(wheels.outbox), f"tailrace[stack,faust] @ {wheels.connector.as_uri()}")
    shown = clean.run("tailrace", "demo", "--json", "--seconds", "4", cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    verdict = json.loads(shown.stdout)
    assert verdict["ok"] is True
    assert verdict["committed"] == verdict["published"] + verdict["dead_lettered"] > 0
    assert verdict["pipelines"].keys() == {"orders", "users"}
    assert verdict["projections"]["order_summary"]["ok"] is True


def test_the_small_distribution_survives_the_removal_of_the_connector(clean: CleanEnvironment, wheels: Wheels) -> None:
    clean.install(*map(str, wheels))
    clean.pip("uninstall", "--quiet", "--yes", "tailrace")
    done = clean.run("python", "-c", "import tailrace.outbox, tailrace.schemas.validation")
    assert done.returncode == 0, done.stderr
