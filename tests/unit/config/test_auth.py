"""Settings of logins with tokens: what is refused, what becomes of them, and that no secret is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.auth.aws import MskToken, RdsToken
from tailrace.auth.oauth import OAuthClient
from tailrace.auth.plugins import PluginToken
from tailrace.config.load import validate_settings
from tailrace.config.model import PipelineSettings
from tailrace.sources.postgres.options import PostgresOptions
from tailrace.worker.options import column_map, kafka_options, source_options

SECRET = "hunter2-4711"
OAUTH = {"token_url": "https://idp.example.org/token", "client_id": "c", "client_secret": "${env:CLIENT_SECRET}"}
ADDRESS = "postgresql://tailrace@db.example.org:5433/shop?sslmode=verify-full"


def load(
    kafka_auth: Any = None, source_auth: Any = None, address: str = ADDRESS, folder: Path = Path(), **settings: Any
) -> tuple[PipelineSettings | None, list[str]]:
    data: dict[str, Any] = {
        "pipeline": "a",
        "source": {"postgres": address, "table": "o"},
        "kafka": {"bootstrap": "k:9093", "settings": settings},
    }
    if kafka_auth is not None:
        data["kafka"]["auth"] = kafka_auth
    if source_auth is not None:
        data["source"]["auth"] = source_auth
    found, problems = validate_settings(data, folder, {"CLIENT_SECRET": SECRET})
    return found, [f"{'.'.join(each.place)} {each.what} {each.remedy}" for each in problems]


def test_oauth(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    found, problems = load(
        {"oauth": {**OAUTH, "scope": "s", "extensions": {"b": "2", "a": "1"}, "ca_file": "ca.pem"}}, folder=tmp_path
    )
    assert problems == []
    assert found is not None
    options = kafka_options(found)
    assert options.auth == OAuthClient(
        OAUTH["token_url"], "c", SECRET, "s", (), (("a", "1"), ("b", "2")), str(tmp_path / "ca.pem")
    )
    assert SECRET not in repr(found) + str(found.model_dump()) + repr(options) + repr(options.auth)


def test_aws() -> None:
    found, problems = load({"aws_iam": {"region": "eu-central-1"}}, {"aws_iam": {"region": "us-gov-west-1"}})
    assert problems == []
    assert found is not None
    assert kafka_options(found).auth == MskToken("eu-central-1")
    options = source_options(found, column_map(found))
    assert isinstance(options, PostgresOptions)
    assert options.password == RdsToken("us-gov-west-1", "db.example.org", 5433, "tailrace")


def test_a_provider_of_an_installed_package() -> None:
    auth = {"provider": "gcp", "options": {"key": "${env:CLIENT_SECRET}", "size": 1}}
    found, problems = load(auth, auth)
    assert problems == []
    assert found is not None
    options = (("key", SECRET), ("size", "1"))
    assert kafka_options(found).auth == PluginToken("gcp", "kafka", options)
    assert SECRET not in repr(found) + str(found.model_dump()) + repr(kafka_options(found).auth)


@pytest.mark.parametrize(
    ("kafka_auth", "source_auth", "settings", "expected"),
    [
        ({}, None, {}, "kafka.auth is wrong: expected exactly one of aws_iam, provider, oauth"),
        ({"oauth": OAUTH, "provider": "x"}, None, {}, "exactly one of"),
        ({"aws_iam": {"region": "moon"}}, None, {}, "a region of AWS"),
        ({"aws_iam": {"region": "eu-west-1"}, "options": {"a": "b"}}, None, {}, "a provider, because"),
        ({"provider": "os:system"}, None, {}, "kafka.auth.provider"),
        ({"oauth": {**OAUTH, "token_url": "http://idp.example.org/token"}}, None, {}, "https:// address"),
        ({"oauth": {**OAUTH, "token_url": "https://u:p@idp/token"}}, None, {}, "https:// address"),
        ({"oauth": {**OAUTH, "token_url": "file:///etc/passwd"}}, None, {}, "https:// address"),
        ({"oauth": {**OAUTH, "ca_file": "none.pem"}}, None, {}, "a file that exists"),
        ({"oauth": {"token_url": "https://idp/token", "client_id": "c"}}, None, {}, "client_secret"),
        ({"aws_iam": {"region": "eu-west-1"}}, None, {"sasl.username": "u"}, "nothing beside kafka.auth"),
        ({"aws_iam": {"region": "eu-west-1"}}, None, {"sasl.mechanism": "PLAIN"}, "nothing beside kafka.auth"),
        ({"aws_iam": {"region": "eu-west-1"}}, None, {"security.protocol": "SSL"}, "SASL_SSL, because"),
        (None, {"oauth": OAUTH}, {}, "source.auth.oauth"),
        (None, {}, {}, "exactly one of aws_iam, provider"),
    ],
)
def test_what_is_refused(kafka_auth: Any, source_auth: Any, settings: dict[str, Any], expected: str) -> None:
    found, problems = load(kafka_auth, source_auth, **settings)
    assert found is None
    assert expected in "\n".join(problems)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("postgresql://u:pw-4711@db/shop", "contains a password"),
        ("postgresql://u@one,two/shop", "does not name one host"),
        ("postgresql://u@/shop", "does not name one host"),
        ("host=/var/run/postgresql user=u dbname=shop", "does not name one host"),
        ("postgresql://db/shop", "does not name a user"),
        ("postgresql://u@db:x/shop?nothing=1", "cannot be read"),
    ],
)
def test_an_address_that_no_token_is_for(address: str, why: str) -> None:
    found, problems = load(None, {"aws_iam": {"region": "eu-west-1"}}, address)
    assert found is None
    assert why in "\n".join(problems)
    assert "pw-4711" not in "\n".join(problems)


def test_a_token_server_on_this_machine_needs_no_tls() -> None:
    for host in ("127.0.0.1:8080", "localhost", "[::1]:1"):
        assert load({"oauth": {**OAUTH, "token_url": f"http://{host}/token"}})[1] == []


def test_mongodb_has_its_own_logins() -> None:
    data = {
        "pipeline": "a",
        "source": {"mongo": "mongodb://db", "collection": "a.b", "auth": {"aws_iam": {"region": "eu-west-1"}}},
        "kafka": {"bootstrap": "k"},
    }
    assert "not a setting of source.mongo" in str(validate_settings(data, Path(), {})[1])
