"""The built package: sdist, wheel, a base install in a clean environment, and `tailrace demo` from the wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = (
    *("connector", "schemas", "topics", "README.md", "LICENSE"),
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


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    return CleanEnvironment(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def wheel(clean: CleanEnvironment) -> Path:
    """The wheel, built from the sdist as pip builds it."""
    source, built = clean.folder / "source", clean.folder / "dist"
    source.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / part, source / part)
    clean.pip("install", "--quiet", "setuptools>=70")
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(built)!r})"
    done = clean.run("python", "-c", build, cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        assert {"schemas/OrderPlaced/1.json", "topics/orders.yaml"} <= {
            name.partition("/")[2] for name in packed.getnames()
        }
    clean.pip("wheel", "--quiet", "--no-deps", "--wheel-dir", built, sdist)
    [wheel] = built.glob("*.whl")
    return wheel


def test_the_wheel_carries_the_folders_of_the_demo(wheel: Path) -> None:
    packed = zipfile.ZipFile(wheel)
    for name in ("schemas", "topics"):
        files = {file.relative_to(ROOT / name) for file in (ROOT / name).rglob("*") if file.is_file()}
        assert files
        for file in files:
            assert packed.read(f"tailrace/testkit/demo/{name}/{file}") == (ROOT / name / file).read_bytes()
    names = packed.namelist()
    assert "tailrace/py.typed" in names
    assert all(name.startswith(("tailrace/", "tailrace-")) for name in names), names


def test_init_and_check_work_without_extras(clean: CleanEnvironment, wheel: Path, tmp_path: Path) -> None:
    remedies: dict[str, str] = {}

    def check(file: str, *options: str) -> dict[str, str]:
        """Runs `tailrace check` and returns the state of each check; the exit code is 1 if one failed."""
        done = clean.run("tailrace", "check", file, "--json", *options, cwd=tmp_path)
        checks = json.loads(done.stdout)["checks"]
        remedies.update({each["name"]: each["remedy"] for each in checks if each["remedy"]})
        states = {each["name"]: each["state"] for each in checks}
        assert done.returncode == ("FAIL" in states.values()), done.stdout + done.stderr
        return states

    clean.install(str(wheel))
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


def test_the_demo_runs_from_the_wheel(clean: CleanEnvironment, wheel: Path, tmp_path: Path) -> None:
    clean.install(f"tailrace[stack,faust] @ {wheel.as_uri()}")
    shown = clean.run("tailrace", "demo", "--json", "--seconds", "4", cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    verdict = json.loads(shown.stdout)
    assert verdict["ok"] is True
    assert verdict["committed"] == verdict["published"] + verdict["dead_lettered"] > 0
    assert verdict["pipelines"].keys() == {"orders", "users"}
    assert verdict["projections"]["order_summary"]["ok"] is True
