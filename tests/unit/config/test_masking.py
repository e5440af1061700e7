"""Secrets in a connector's configuration: what is shown, and what a returned mask stands for."""

from __future__ import annotations

import pytest

from tailrace.config.debezium_keys import HARMLESS, ROUTER_RENAMED
from tailrace.config.flat import flatten
from tailrace.config.masking import masked, masked_value, unmasked
from tailrace.config.model import PipelineSettings
from tailrace.config.problems import all_places

STORED = {
    "source.postgres": "postgresql://u:hunter2@db/shop",
    "kafka.bootstrap": "kafka:9092",
    "kafka.settings.sasl.password": "hunter2",
    "kafka.settings.sasl.username": "u",
    "kafka.auth.oauth.token_url": "https://idp",
    "kafka.auth.oauth.client_secret": "hunter2",
}
OAUTH = {
    "kafka.bootstrap": "kafka:9092",
    "kafka.settings.sasl.oauthbearer.token.endpoint.url": "https://idp",
    "kafka.settings.sasl.oauthbearer.client.secret": "hunter2",
}
REGISTRY = {"schemas.registry.url": "https://r", "schemas.registry.settings.basic.auth.user.info": "u:hunter2"}
ARCHIVE = {"archive.url": "az://cold", "archive.options.endpoint": "https://a", "archive.options.sas_token": "hunter2"}


@pytest.mark.parametrize(
    ("key", "text", "shown"),
    [
        ("source.postgres", "postgresql://u:hunter2@db/shop", "postgresql://u:***@db/shop"),
        ("source.postgres", "host=db password=hunter2", "host=db password=***"),
        ("source.postgres", "postgresql://u:${env:PW}@db/shop", "postgresql://u:${env:PW}@db/shop"),
        ("mongodb.connection.string", "mongodb://u:hunter2@db", "mongodb://u:***@db"),
        ("database.password", "hunter2", "***"),
        ("database.password", "${env:PW}", "${env:PW}"),
        ("database.sslpassword", "hunter2", "***"),
        ("kafka.settings.sasl.password", "hunter2", "***"),
        ("kafka.settings", '{"sasl.password": "hunter2", "linger.ms": 5}', '{"sasl.password": "***", "linger.ms": 5}'),
        ("kafka.settings", '{"linger.ms" : "5"}', '{"linger.ms" : "5"}'),
        ("kafka.settings", "{sasl.password: hunter2}", "***"),
        ("kafka.settings", "[hunter2]", "***"),
        ("producer.override.sasl.jaas.config", 'x password="hunter2";', "***"),
        ("schemas.registry.settings.basic.auth.user.info", "u:hunter2", "***"),
        ("value.converter.basic.auth.user.info", "u:hunter2", "***"),
        ("dead_letters.webhook.headers.X-Key", "hunter2", "***"),
        ("dead_letters.webhook.url", "https://hooks.example.org/hunter2", "https://hooks.example.org/***"),
        ("archive.options.secret_access_key", "hunter2", "***"),
        ("archive.options.region", "eu-central-1", "eu-central-1"),
        ("kafka.settings.sasl.oauthbearer.token.endpoint.url", "https://idp", "https://idp"),
        ("schemas.registry.settings.basic.auth.credentials.source", "USER_INFO", "USER_INFO"),
        ("kafka.settings.ssl.key.location", "/key.pem", "/key.pem"),
        ("kafka.settings.ssl.key.pem", "hunter2", "***"),
        ("kafka.auth.oauth.client_secret", "hunter2", "***"),
        ("kafka.auth.oauth.token_url", "https://idp", "https://idp"),
        ("kafka.auth.options.api_token", "hunter2", "***"),
        ("source.auth.options", '{"password": "hunter2"}', '{"password": "***"}'),
    ],
)
def test_what_is_shown(key: str, text: str, shown: str) -> None:
    assert masked_value(key, text) == shown
    assert "hunter2" not in str(masked({key: text}))


PLAIN = [".".join(place) for place in all_places() if place[-1] != "client_secret"]
MAPS = ("kafka.settings", "schemas.registry.settings", "dead_letters.webhook.headers", "archive.options",
        "kafka.auth.options", "source.auth.options")  # fmt: skip


@pytest.mark.parametrize("key", [*PLAIN, *HARMLESS, *(f"transforms.x.table.{key}" for key in ROUTER_RENAMED)])
def test_other_settings_are_shown_as_they_are(key: str) -> None:
    assert masked_value(key, "{}" if key in MAPS else "some-text") in ("{}", "some-text")


def test_defaults_are_no_secrets() -> None:
    smallest = {"pipeline": "a", "source": {"postgres": "host=db", "table": "o"}, "kafka": {"bootstrap": "k"}}
    flat = flatten(PipelineSettings.model_validate(smallest).model_dump())
    assert masked(flat) == flat


def test_a_returned_mask_keeps_the_stored_secret() -> None:
    assert unmasked(masked(STORED), STORED) == (STORED, [])
    changed = {**masked(STORED), "kafka.settings.linger.ms": "5"}
    assert unmasked(changed, STORED) == ({**STORED, "kafka.settings.linger.ms": "5"}, [])


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"source.postgres": "postgresql://u:***@elsewhere/shop"}, "source.postgres"),
        ({"kafka.bootstrap": "elsewhere:9092"}, "kafka.settings.sasl.password"),
        ({"kafka.bootstrap": None}, "kafka.settings.sasl.password"),
        ({"kafka.auth.oauth.token_url": "https://elsewhere"}, "kafka.auth.oauth.client_secret"),
        ({"kafka.settings.ssl.key.password": "***"}, "kafka.settings.ssl.key.password"),
    ],
)
def test_a_mask_is_never_sent_elsewhere(change: dict[str, str | None], key: str) -> None:
    _, problems = unmasked({**masked(STORED), **change}, STORED)
    assert key in {problem.key for problem in problems}
    assert all("write the secret" in problem.remedy for problem in problems)


@pytest.mark.parametrize(
    ("stored", "change", "key"),
    [
        (
            OAUTH,
            {"kafka.settings.sasl.oauthbearer.token.endpoint.url": "https://elsewhere"},
            "kafka.settings.sasl.oauthbearer.client.secret",
        ),
        (
            {name: text for name, text in OAUTH.items() if not name.endswith("url")},
            {"kafka.settings": '{"sasl.oauthbearer.token.endpoint.url": "https://elsewhere"}'},
            "kafka.settings.sasl.oauthbearer.client.secret",
        ),
        (
            {"kafka.bootstrap": "kafka:9092", "kafka.auth.oauth.client_secret": "hunter2"},
            {"kafka.bootstrap": "elsewhere:9092"},  # the token is sent there
            "kafka.auth.oauth.client_secret",
        ),
        (
            REGISTRY,
            {"schemas.registry.settings.proxy": "http://elsewhere"},
            "schemas.registry.settings.basic.auth.user.info",
        ),
        (
            REGISTRY,
            {"value.converter.schema.registry.url": "https://elsewhere"},
            "schemas.registry.settings.basic.auth.user.info",
        ),
        (ARCHIVE, {"archive.options.endpoint": "https://elsewhere"}, "archive.options.sas_token"),
        (
            {"source.postgres": "host=db", "source.auth.provider": "vault", "source.auth.options.token": "hunter2"},
            {"source.postgres": "host=elsewhere"},
            "source.auth.options.token",
        ),
    ],
)
def test_a_mask_is_not_sent_to_another_address_of_the_same_servers(
    stored: dict[str, str], change: dict[str, str], key: str
) -> None:
    assert unmasked(masked(stored), stored) == (stored, [])
    whole, problems = unmasked({**masked(stored), **change}, stored)
    assert key in {problem.key for problem in problems}
    assert "hunter2" not in str({name: whole[name] for name in (key, *change)})


def test_a_password_of_debezium_is_not_sent_to_another_host() -> None:
    stored = {"database.hostname": "db", "database.password": "hunter2", "slot.name": "a"}
    assert unmasked({**masked(stored), "slot.name": "b"}, stored)[0]["database.password"] == "hunter2"
    _, [problem] = unmasked({**masked(stored), "database.hostname": "elsewhere"}, stored)
    assert problem.key == "database.password"
