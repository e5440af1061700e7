"""The Dockerfile: its files exist, its command is one of the program, and the image has neither root nor a compiler."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch

from helpers.deploy_files import ROOT, compose, dockerfile_steps, parse_command

STEPS = dockerfile_steps()
FINAL = [step for step in STEPS if step.stage == STEPS[-1].stage]


def copied() -> set[str]:
    """Returns what is copied from the repository."""
    steps = [step for step in STEPS if step.word == "COPY" and not step.text.startswith("--from")]
    return {source for step in steps for source in step.arguments[:-1]}


def admitted() -> set[str]:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert "*" in lines, "everything else stays outside"
    return {line[1:] for line in lines if line.startswith("!")}


def test_it_has_two_stages_of_one_pinned_slim_image() -> None:
    images = {step.text.split(" ")[0] for step in STEPS if step.word == "FROM"}
    assert len([step for step in STEPS if step.word == "FROM"]) == 2
    [image] = images
    assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+", image)


def test_everything_that_it_copies_exists_and_nothing_else_reaches_the_build() -> None:
    assert copied() == admitted()
    for source in copied():
        assert (ROOT / source).exists(), source


def test_no_secret_reaches_the_build() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n") if line]
    for name in ("compose/.env", ".git/config", ".venv/bin/python"):
        assert not any(fnmatch(name, f"{pattern}*") for pattern in admitted())
    assert "**/__pycache__" in ignored


def test_it_installs_both_distributions_with_the_constraints_and_extras_that_exist() -> None:
    [install] = [
        step.text for step in STEPS if step.word == "RUN" and " pip install " in step.text.replace("/pip", " pip")
    ]
    assert "-c constraints.txt" in install
    assert "./distributions/outbox" in install
    given = re.search(r"'\.\[([a-z,]+)\]'", install)
    assert given is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = given[1].split(",")
    assert set(extras) >= {"mongo", "registry", "http", "faust", "archive"}
    assert set(extras) <= project["optional-dependencies"].keys() - {"dev", "stack"}


def test_nothing_is_compiled_and_the_final_image_gets_the_environment_only() -> None:
    text = " ".join(step.text for step in STEPS)
    assert not re.search(r"\b(apt|apt-get|apk|gcc|g\+\+|build-essential|make)\b", text)
    assert "--only-binary=:all:" in text
    assert [step.text for step in FINAL if step.word == "COPY"] == ["--from=build /opt/tailrace /opt/tailrace"]


def test_it_does_not_run_as_root() -> None:
    [user] = [step.text for step in FINAL if step.word == "USER"]
    number, _, group = user.partition(":")
    assert int(number) > 1000
    assert group == number
    [created] = [step.arguments for step in FINAL if step.word == "RUN"]
    assert created[0] == "useradd"
    assert created[created.index("--uid") + 1] == number


def test_its_command_is_a_worker_on_the_exposed_port_and_the_health_check_asks_it() -> None:
    entry = {step.word: step for step in FINAL}
    assert entry["ENTRYPOINT"].arguments == ["tailrace"]
    given = parse_command(entry["CMD"].arguments)
    assert given["command"] == "tailrace worker"
    host, _, port = given["http"].partition(":")
    assert host == "0.0.0.0"  # needs TAILRACE_HTTP_SETTINGS: without it the worker refuses to start
    assert entry["EXPOSE"].text == port
    check = entry["HEALTHCHECK"].text
    assert f"HTTPConnection('127.0.0.1', {port}," in check
    assert "/livez" in check


def test_compose_builds_this_file() -> None:
    build = compose()["services"]["worker"]["build"]
    assert build == {"context": "..", "dockerfile": "Dockerfile"}
