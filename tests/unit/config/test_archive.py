"""Settings of the archive: valid addresses, and keys that are never shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.config.archive import ArchiveSettings
from tailrace.config.load import load_pipeline
from tailrace.config.secrets import mask
from tailrace.errors import ConfigError


def settings(tmp_path: Path, **archive: object) -> Path:
    file = tmp_path / "orders.yaml"
    source = {"postgres": "postgresql://localhost/shop", "table": "public.outbox"}
    kafka = {"bootstrap": "localhost:9092"}
    file.write_text(json.dumps({"pipeline": "orders", "source": source, "kafka": kafka, "archive": archive}))
    return file


@pytest.mark.parametrize("url", ["file:///var/cold", "s3://cold", "s3://cold/outbox/", "gs://cold/a", "az://cold/a"])
def test_addresses(tmp_path: Path, url: str) -> None:
    found = load_pipeline(settings(tmp_path, url=url)).archive
    assert found is not None
    assert found.url == url.rstrip("/")


@pytest.mark.parametrize(
    "url", ["cold", "file://cold", "s3://", "s3://key:secret@cold", "https://cold/x", "s3://a?b=c"]
)
def test_invalid_addresses_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"archive\.url"):
        load_pipeline(settings(tmp_path, url=url))


def test_keys_are_hidden_and_the_rest_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLD_KEY", "from-the-environment")
    options = {
        "region": "eu-central-1",
        "allow_http": True,
        "secret_access_key": "${env:COLD_KEY}",
        "sas_token": "written-out-here",
    }
    found = load_pipeline(settings(tmp_path, url="s3://cold", options=options)).archive
    assert found is not None
    assert found.option_values() == {
        "region": "eu-central-1",
        "allow_http": "True",
        "secret_access_key": "from-the-environment",
        "sas_token": "written-out-here",
    }
    shown = f"{found!r} {found.model_dump()}"
    assert "eu-central-1" in shown
    assert "from-the-environment" not in shown
    assert "written-out-here" not in shown
    assert mask("from-the-environment, written-out-here, eu-central-1") == "***, ***, eu-central-1"


@pytest.mark.parametrize("name", ["proxy_url", "endpoint"])
def test_passwords_within_addresses_are_hidden(name: str) -> None:
    given = ArchiveSettings(url="s3://cold", options={name: "http://user:hush@host:1", "region": "x"})
    assert "hush" not in repr(given)
    assert given.options["region"] == "x"
    assert given.option_values()[name] == "http://user:hush@host:1"
