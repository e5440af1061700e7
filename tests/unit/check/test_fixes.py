"""Fixes: their kind, and names with quotes in them."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tailrace.check.findings import new_file, problem, settings
from tailrace.check.kafka_commands import allow, alter_topic
from tailrace.check.result import Fix
from tailrace.kafka.client import KafkaOptions

ODD = 'it\'s; a "name" $(touch hacked) `touch hacked`'


@pytest.mark.parametrize(
    ("remedy", "kind"),
    [
        ('ALTER TABLE "a"."b" SET LOGGED;', "sql"),
        ("kafka-configs --alter", "shell"),
        ("psql 'host=a' -c x", "shell"),
        ("db.adminCommand({})", "mongosh"),
        ("ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (…)'", "text"),
        ("Set source.slot.", "text"),
    ],
)
def test_the_kind_of_a_remedy(remedy: str, kind: str) -> None:
    assert Fix.of(remedy) == Fix(kind, remedy)  # type: ignore[arg-type]


def test_settings_are_yaml() -> None:
    fix = settings("orders.yaml", {"kafka": {"settings": {"transaction.timeout.ms": 5}}, "topics": {"folder": ODD}})
    assert fix.text.startswith("# orders.yaml\n")
    assert yaml.safe_load(fix.text) == {
        "kafka": {"settings": {"transaction.timeout.ms": 5}},
        "topics": {"folder": ODD},
    }


def test_a_new_file_is_written_as_it_is_and_replaces_none(tmp_path: Path) -> None:
    folder = tmp_path / ODD
    fix = new_file(f"{folder}/{ODD}.json", {"type": ODD})
    subprocess.run(fix.text, shell=True, check=True, cwd=tmp_path)
    assert yaml.safe_load((folder / f"{ODD}.json").read_text()) == {"type": ODD}
    assert subprocess.run(fix.text, shell=True, check=False, cwd=tmp_path).returncode != 0
    assert list(tmp_path.iterdir()) == [folder]


def test_commands_of_kafka_are_quoted_and_name_no_password() -> None:
    login = {"security.protocol": "SASL_SSL", "sasl.username": "u", "sasl.password": "s3cret"}
    options = KafkaOptions("k:9092", "orders", settings=login)
    command = alter_topic(options, ODD, {"cleanup.policy": "compact,delete", "retention.ms": None})
    words = shlex.split(command)
    assert words[words.index("--entity-name") + 1] == ODD
    assert words[words.index("--add-config") + 1] == "cleanup.policy=[compact,delete]"
    assert words[words.index("--delete-config") + 1] == "retention.ms"
    assert words[words.index("--command-config") + 1] == "client.properties"
    assert "s3cret" not in command + allow(options, "User:u", ["Write"], "--topic", "t")


def test_an_unknown_code_is_a_bug() -> None:
    with pytest.raises(KeyError):
        problem("no-such-code", "x")
