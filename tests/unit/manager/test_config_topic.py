"""Records of the config topic, and the files that are written for them."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ConfigError
from tailrace.manager.config_topic import absolute_paths, config_record, found_in_topic, parse_record

CONFIG = {
    "connector.class": "tailrace.PostgresOutbox",
    "source.postgres": "postgresql://u:${env:PW}@localhost/shop",
    "source.table": "public.outbox",
}


def test_a_record_is_read_as_it_was_written() -> None:
    assert parse_record(b"orders", config_record(CONFIG)) == ("orders", CONFIG)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"", b"{}"),
        (b"Not A Name", config_record(CONFIG)),
        (b"\xff", config_record(CONFIG)),
        (b"orders", b""),
        (b"orders", b"\xff"),
        (b"orders", b"null"),
        (b"orders", b"[]"),
        (b"orders", b'{"config": []}'),
        (b"orders", b'{"config": {"a": 1}}'),
        (b"orders", b"[" * 100_000),
    ],
)
def test_garbage_names_its_key(key: bytes | None, value: bytes) -> None:
    with pytest.raises(ConfigError, match="is not a configuration") as caught:
        parse_record(key, value)
    assert repr((key or b"").decode("utf-8", "replace")) in str(caught.value)
    assert caught.value.remedy


@given(st.binary(max_size=20), st.binary(max_size=50))
def test_any_bytes_are_garbage_or_a_configuration(key: bytes, value: bytes) -> None:
    try:
        parse_record(key, value)
    except ConfigError:
        pass


def test_the_file_of_a_configuration_is_private_and_has_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PW", "secret-word")
    (tmp_path / "base" / "schemas").mkdir(parents=True)
    config = {**CONFIG, "schemas.folder": "schemas", "kafka.settings.compression.type": "zstd"}
    found = found_in_topic("orders", config, tmp_path, tmp_path / "base", "kafka:9092")
    assert found.error is None
    assert found.settings is not None
    assert found.settings.kafka.bootstrap == "kafka:9092"
    assert found.config == config
    assert stat.S_IMODE(found.file.stat().st_mode) == 0o600
    written = yaml.safe_load(found.file.read_text())
    assert written["schemas"]["folder"] == str(tmp_path / "base" / "schemas")
    assert "secret-word" not in found.file.read_text()


def test_an_invalid_configuration_has_its_error(tmp_path: Path) -> None:
    found = found_in_topic("orders", {"nonsense": "1"}, tmp_path, tmp_path, "")
    assert found.settings is None
    assert "nonsense" in str(found.error)


def test_relative_paths_become_absolute(tmp_path: Path) -> None:
    tree = {
        "schemas": {},
        "topics": {"folder": "topics"},
        "rules": {"folder": "/rules"},
        "source": {"postgres": "postgresql://u:${file:pw}@h/d"},
        "kafka": {"settings": {"sasl.password": "${file:/run/pw}", "plain": "$${file:pw}"}},
    }
    found = absolute_paths(tree, tmp_path)
    assert found["schemas"] == {"folder": str(tmp_path / "schemas")}
    assert found["topics"] == {"folder": str(tmp_path / "topics")}
    assert found["rules"] == {"folder": "/rules"}
    assert found["source"]["postgres"] == f"postgresql://u:${{file:{tmp_path}/pw}}@h/d"
    assert found["kafka"] == tree["kafka"]
    assert json.dumps(found)  # plain data
