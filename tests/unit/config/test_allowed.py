"""What a configuration that was sent over REST may use of the worker's machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.config.allowed import NOTHING, Allowed
from tailrace.config.connector import MONGO, POSTGRES, check_connector
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
        {"source.postgres": "host=evil passfile = '/root/.pgpass'"},
        {"source.postgres": r"host=evil options='it\'s' passfile=/root/.pgpass"},
        {"source.postgres": "host=evil application_name=$${ passfile=/root/.pgpass options=}"},
        {"source.postgres": "postgresql://u:?passfile=x@evil/db?passfile=/root/.pgpass"},
        {"source.postgres": "host=evil sslkeylogfile=/root/written"},
        {"source.postgres": "postgresql://u@evil/db?sslkeylogfile=/root/written"},
        {"source.postgres": "host=evil krbsrvname=other"},
        {"source.postgres": "host=evil gssdelegation=1"},
        {"source.postgres": "host=evil an_option_of_a_later_libpq=1"},
        {"source.postgres": "host=/var/run/postgresql user=postgres"},
        {"source.postgres": "host=db,@abstract user=postgres"},
        {"source.postgres": "postgresql://postgres@%2Fvar%2Frun%2Fpostgresql/shop"},
        {"source.postgres": "dbname=shop"},
        {"source.postgres": "postgresql:///shop"},
        {"kafka.settings.sasl.kerberos.keytab": "/etc/krb5.keytab"},
        {"kafka.settings.sasl.mechanism": "gssapi"},
        {"kafka.settings.security.protocol": "SASL_SSL"},
        {"archive.url": "s3://cold/outbox"},
        {"archive.url": "s3://cold/outbox", "archive.options.skip_signature": "false"},
        {"archive.url": "gs://cold", "archive.options.service_account": "/root/key.json"},
        {"archive.url": "az://cold", "archive.options.account_key": "k", "archive.options.federated_token_file": "/t"},
    ],
)
def test_credentials_of_the_machine_are_not_sent(tmp_path: Path, more: dict[str, str]) -> None:
    found = check_connector("orders", {**SMALL, **more}, tmp_path, {}, allowed=Allowed(variables=("*",)))
    assert any("of the worker's machine" in each.text for each in found.problems)


@pytest.mark.parametrize(
    "address",
    [
        "mongodb://evil/?authMechanism=MONGODB-AWS&appName=a@b",
        "mongodb://evil/?authMechanism=GSSAPI",
        "mongodb://u:a?b@evil/db?authMechanism=MONGODB-OIDC&authMechanismProperties=ENVIRONMENT:azure",
        "mongodb://evil/?authMechanism=MONGODB%2DOIDC",
    ],
)
def test_credentials_of_the_machine_for_mongodb(tmp_path: Path, address: str) -> None:
    config = {**SMALL, "connector.class": MONGO, "source.mongo": address, "source.collection": "shop.outbox"}
    del config["source.postgres"], config["source.table"]
    found = check_connector("users", config, tmp_path, {}, allowed=Allowed(variables=("*",)))
    assert any("of the worker's machine" in each.text for each in found.problems)


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"kafka.settings.ssl.key.location": "{}"}, "key.pem"),
        ({"kafka.settings.ssl.keystore.location": "{}"}, "key.pem"),
        ({"schemas.registry.url": "https://registry", "schemas.registry.settings.ssl.key.location": "{}"}, "key.pem"),
        ({"source.postgres": "host=db sslcert=x sslkey={}"}, "key.pem"),
        ({"source.postgres": "postgresql://u@db/shop?sslcert=x&sslkey={}"}, "key.pem"),
        ({"archive.url": "file://{}"}, "archive"),
    ],
)
def test_files_of_keys_are_allowed_by_folder(tmp_path: Path, more: dict[str, str], name: str) -> None:
    file = tmp_path / "own" / name
    file.parent.mkdir()
    config = {**SMALL, **{key: text.format(file) for key, text in more.items()}}

    def text(allowed: Allowed) -> str:
        return " ".join(each.text for each in check_connector("orders", config, tmp_path, {}, allowed=allowed).problems)

    assert "may not use" in text(Allowed(files=(tmp_path / "other",)))
    relative = {key: given.format(f"own/{name}") for key, given in more.items()}
    if "archive.url" not in more:
        found = check_connector("orders", {**SMALL, **relative}, tmp_path, {}, allowed=Allowed(files=(tmp_path,)))
        assert any("may not use" in each.text for each in found.problems)
    assert "may not use" not in text(Allowed(files=(tmp_path / "own",)))


@pytest.mark.parametrize(
    "more",
    [
        {"source.postgres": "host=db,db2 port=5432,5433 user=u password='a b' sslmode=verify-full connect_timeout=5"},
        {"source.postgres": "postgresql://u:p?a=b@db,db2:5433/shop?target_session_attrs=read-write&options=-c%20x%3Dy"},
        {"source.postgres": "host=db gssencmode=disable sslrootcert=/ca.pem"},
        {"kafka.settings": '{"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u"}'},
        {
            "archive.url": "s3://cold",
            "archive.options": '{"aws_access_key_id": "a", "aws_secret_access_key": "b", "endpoint": "https://s3"}',
        },
    ],
)
def test_what_is_not_of_the_machine_may_be_used(tmp_path: Path, more: dict[str, str]) -> None:
    assert not [
        each.text
        for each in check_connector("orders", {**SMALL, **more}, tmp_path, {}, allowed=NOTHING).problems
        if "worker" in each.text or "may not use" in each.text
    ]


@pytest.mark.parametrize("address", ["postgresql://u@evil/shop", "host=evil user=u", "host=evil password=''"])
def test_a_password_of_the_environment_is_not_sent(tmp_path: Path, address: str) -> None:
    allowed = Allowed(variables=("SHOP_*",), logins=("PGPASSWORD",))
    assert "the worker's PGPASSWORD" in problems(tmp_path, allowed, source__postgres=address)
    assert problems(tmp_path, Allowed(variables=("PG*",), logins=("PGPASSWORD",)), source__postgres=address) == ""
    assert problems(tmp_path, Allowed(), source__postgres=address) == ""
    for own in ("postgresql://u:${env:SHOP_DB}@h/shop", "host=h password=${env:SHOP_DB}", "host=h password=literal-1"):
        assert problems(tmp_path, allowed, source__postgres=own) == ""


@pytest.mark.parametrize("name", ["ssl.providers", "ssl.engine.location", "plugin.library.paths"])
def test_settings_that_load_code_are_refused(tmp_path: Path, name: str) -> None:
    assert "loads a library" in problems(tmp_path, NOTHING, **{f"kafka__settings__{name.replace('.', '__')}": "x"})


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
