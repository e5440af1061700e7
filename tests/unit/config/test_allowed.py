"""What a configuration that was sent over REST may use of the worker's machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.config.allowed import NOTHING, Allowed
from tailrace.config.connector import POSTGRES, check_connector
from tailrace.manager.config_topic import found_in_topic

SMALL = {
    "connector.class": POSTGRES,
    "source.postgres": "postgresql://u@127.0.0.1/shop",
    "source.table": "outbox",
    "kafka.bootstrap": "kafka:9092",
    "schemas.folder": ".",
    "topics.template": "x",
}
ENVIRON = {"SHOP_DB": "db-marker-1234", "OTHER": "other-marker-1234"}


def problems(folder: Path, allowed: Allowed | None, **more: str) -> str:
    config = {**SMALL, **{name.replace("__", "."): text for name, text in more.items()}}
    found = check_connector("orders", config, folder, ENVIRON, allowed=allowed)
    texts = " ".join(each.text for each in found.problems)
    assert "marker" not in texts
    return texts


def test_nothing_is_allowed_by_default(tmp_path: Path) -> None:
    given = {"source__postgres": "postgresql://u:${env:SHOP_DB}@127.0.0.1/shop"}
    assert problems(tmp_path, None, **given) == ""
    assert problems(tmp_path, NOTHING) == ""
    text = problems(tmp_path, NOTHING, **given)
    assert "source.postgres" in text
    assert "allow: {variables: [SHOP_DB]}" in text
    assert problems(tmp_path, Allowed(variables=("SHOP_*",)), **given) == ""
    assert "OTHER" in problems(
        tmp_path, Allowed(variables=("SHOP_*",)), source__postgres="host=h password=${env:SHOP_DB}${env:OTHER}"
    )


def test_files_are_allowed_by_folder(tmp_path: Path) -> None:
    secrets, other = tmp_path / "secrets", tmp_path / "secrets-other"
    for folder in (secrets, other):
        folder.mkdir()
        (folder / "pw").write_text("file-marker-1234\nkey=key-marker-1234\n")
    (secrets / "link").symlink_to(other / "pw")
    (secrets / "inside").symlink_to(secrets / "pw")
    allowed = Allowed(files=(secrets,))

    def of(reference: str) -> str:
        return problems(tmp_path, allowed, source__postgres=f"postgresql://u:{reference}@127.0.0.1/shop")

    for fine in (
        f"${{file:{secrets}/pw:key}}",
        "${file:secrets/pw}",
        f"${{dir:{secrets}:pw}}",
        "${file:secrets/inside}",
    ):
        assert "may not use" not in of(fine), fine
    for bad in (
        f"${{file:{other}/pw}}",
        "${file:secrets/../secrets-other/pw}",
        "${file:secrets/link}",
        f"${{dir:{secrets}/..:secrets-other}}",
        "${file:/etc/passwd}",
        "${file:secrets/../../../etc/passwd:root}",
        "${file:secrets/\0}",
    ):
        assert "may not use" in of(bad), bad
    assert "may not use" not in of("$${file:/etc/passwd}")  # no reference


@pytest.mark.parametrize(
    "more",
    [
        {"kafka.settings.sasl.oauthbearer.assertion.file": "/etc/shadow"},
        {"kafka.settings": '{"sasl.oauthbearer.metadata.authentication.type": "azure_imds"}'},
        {"kafka.auth.aws_iam.region": "eu-central-1"},
        {"source.auth.provider": "gcp"},
        {"source.postgres": "service=prod host=evil"},
        {"source.postgres": "postgresql://u@evil/db?passfile=/root/.pgpass"},
        {"source.postgres": "postgresql://u@evil/db?pass%66ile=/root/.pgpass"},
    ],
)
def test_credentials_of_the_machine_are_not_sent(tmp_path: Path, more: dict[str, str]) -> None:
    found = check_connector("orders", {**SMALL, **more}, tmp_path, {}, allowed=Allowed(variables=("*",)))
    assert any("credentials of the worker's machine" in each.text for each in found.problems)


def test_rules_are_allowed_by_module(tmp_path: Path) -> None:
    def of(name: str, allowed: Allowed) -> str:
        return problems(tmp_path, allowed, rules__checks='{"Order*": ["' + name + '"]}')

    assert "names the module os," in of("os:system", NOTHING)
    assert "allow: {rules: [shop_rules]}" in of("shop_rules:positive", NOTHING)
    allowed = Allowed(rules=("shop_rules",))
    assert of("shop_rules:positive", allowed) == ""
    assert of("shop_rules.orders:positive", allowed) == ""
    assert "names the module" in of("shop_rules_evil:positive", allowed)
    assert of("an-entry-point", NOTHING) == ""


def test_a_record_of_the_config_topic_is_checked_as_well(tmp_path: Path) -> None:
    config: dict[str, Any] = {**SMALL, "name": "orders", "source.postgres": "host=h password=${file:/etc/hostname}"}
    files = tmp_path / "files"
    files.mkdir()
    found = found_in_topic("orders", config, files, tmp_path, "", NOTHING)
    assert found.settings is None
    assert found.error is not None
    assert "may not use" in found.error.what
    assert not list(files.iterdir())
