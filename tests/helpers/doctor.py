"""`Doctor`: runs `tailrace doctor` on a service, and runs the fixes that it prints, exactly as they are printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.service import Service
from helpers.shop import Shop
from helpers.users import Users
from tailrace.cli import main
from tailrace.testkit.stack import kafka_local
from tailrace.testkit.stack.paths import quiet

Finding = dict[str, Any]


class Doctor:
    """`secrets` must be in no output."""

    def __init__(self, service: Service, capsys: pytest.CaptureFixture[str], tools: Path) -> None:
        self.service = service
        self.secrets: list[str] = []
        self.environ: dict[str, str] = {}
        self._capsys = capsys
        self._tools = tools

    def report(self, *arguments: str) -> dict[str, Any]:
        """Runs the command; checks its exit code."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main(["doctor", str(self.service.file), "--json", *arguments])
        printed = self._capsys.readouterr()
        assert printed.err == "", printed.err[-2000:]
        assert not [secret for secret in self.secrets if secret in printed.out]
        found: dict[str, Any] = json.loads(printed.out)
        failed = found["problems"] or ("--strict" in arguments and found["warnings"])
        assert caught.value.code == (1 if failed else 0), found
        return found

    def findings(self) -> list[Finding]:
        report = self.report()
        return [*report["pipelines"][0]["findings"], *report["worker"]["findings"]]

    def codes(self) -> set[str]:
        return {each["code"] for each in self.findings()}

    def finding(self, code: str, about: str = "") -> Finding:
        """Returns the one finding with this code whose text contains `about`."""
        findings = self.findings()
        found = [each for each in findings if each["code"] == code and about in each["what"]]
        assert len(found) == 1, f"{code} ({about}): {findings}"
        return found[0]

    def fix(self, finding: Finding, *kinds: str) -> None:
        """Runs the fixes of a finding, of these kinds or all."""
        fixes = [each for each in finding["fixes"] if not kinds or each["kind"] in kinds]
        assert fixes, finding
        for each in fixes:
            _APPLY[each["kind"]](self, each["text"])

    def heals(self, code: str, about: str = "", *, severity: str) -> Finding:
        """The finding is there; after its fix it is not."""
        found = self.finding(code, about)
        assert found["severity"] == severity
        self.fix(found)
        left = [each for each in self.findings() if each["code"] == code and about in each["what"]]
        assert left == []
        return found

    def sql(self, text: str) -> None:
        assert isinstance(self.service, Shop)
        # Some statements must not be in a transaction, so each is run by itself.
        for statement in re.sub(r"--.*", "", text).split(";"):
            if statement.strip():
                self.service.execute(statement)

    def shell(self, text: str) -> None:
        # The tools of this environment: `tailrace` and, as scripts, Kafka's own.
        path = f"{self._tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environ = {**os.environ, "PATH": path, **self.environ}
        done = subprocess.run(text, shell=True, env=environ, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"

    def yaml(self, text: str) -> None:
        file = Path(text.splitlines()[0].removeprefix("# "))
        settings = yaml.safe_load(file.read_text())
        merge(settings, yaml.safe_load(text))
        file.write_text(yaml.safe_dump(settings))
        if file == self.service.file:
            self.service.settings = settings

    def mongosh(self, text: str) -> None:
        assert isinstance(self.service, Users)
        call = re.match(r'db\.getSiblingDB\("(.*)"\)\.getCollection\("(.*)"\)\.createIndex\((\{.*\})\)', text)
        assert call, text
        database, collection, keys = call.groups()
        with self.service.client() as client:
            client[database][collection].create_index(list(json.loads(keys).items()))


def merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(name), dict):
            merge(into[name], value)
        else:
            into[name] = value


_APPLY: dict[str, Callable[[Doctor, str], None]] = {
    "sql": Doctor.sql,
    "shell": Doctor.shell,
    "yaml": Doctor.yaml,
    "mongosh": Doctor.mongosh,
}


@pytest.fixture(scope="session")
def kafka_tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Kafka's command line tools: kafka-configs from the jars of the broker, which lack the others."""
    folder, library = tmp_path_factory.mktemp("tools"), kafka_local.jars(quiet)
    configs = kafka_local.command(library, "128m", "kafka.admin.ConfigCommand")
    others = [sys.executable, str(Path(__file__).with_name("kafka_tools.py"))]
    for name, words in (("kafka-configs", configs), ("kafka-topics", others), ("kafka-acls", others)):
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def doctor(shop: Shop, capsys: pytest.CaptureFixture[str], kafka_tools: Path) -> Doctor:
    """Checks the shop."""
    return Doctor(shop, capsys, kafka_tools)
