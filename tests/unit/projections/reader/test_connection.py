"""The reader's Kafka settings: Faust's credentials are translated, and no setting weakens the guarantees."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path
from typing import Any

import faust
import pytest
from aiokafka.abc import AbstractTokenProvider
from faust.auth import Credentials
from faust.types.auth import AuthProtocol, CredentialsT, SASLMechanism

from helpers.tls import Certificates
from tailrace.errors import ConfigError
from tailrace.projections.faust.app import ProjectionApp, projection_app
from tailrace.projections.reader.connection import consumer_config


def app(credentials: CredentialsT | None = None, **settings: Any) -> ProjectionApp:
    return projection_app("shop", "kafka://one:1;kafka://two", broker_credentials=credentials, **settings)


def test_an_app_without_credentials() -> None:
    config = consumer_config(app())
    assert config["bootstrap.servers"] == "one:1,two:9092"
    assert config["group.id"] == "shop.projections"
    assert "security.protocol" not in config


def test_settings_cannot_weaken_the_guarantees() -> None:
    unsafe = {
        "isolation.level": "read_uncommitted",
        "enable.auto.commit": True,
        "auto.offset.reset": "latest",
        "group.id": "other",
        "enable.partition.eof": False,
    }
    safe = consumer_config(app())
    config = consumer_config(app(kafka_settings={**unsafe, "fetch.min.bytes": 7}))
    assert {name: config[name] for name in unsafe} == {name: safe[name] for name in unsafe}
    assert config["fetch.min.bytes"] == 7


def test_a_user_and_a_password_with_tls() -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    credentials = faust.SASLCredentials(username="u", password="p", ssl_context=context, mechanism="SCRAM-SHA-256")
    config = consumer_config(app(credentials))
    assert config["security.protocol"] == "sasl_ssl"
    assert config["sasl.mechanism"] == "SCRAM-SHA-256"
    assert (config["sasl.username"], config["sasl.password"]) == ("u", "p")
    assert config["ssl.endpoint.identification.algorithm"] == "none"
    assert config["enable.ssl.certificate.verification"] is True


def test_kerberos() -> None:
    config = consumer_config(app(faust.GSSAPICredentials(kerberos_service_name="broker")))
    assert config["security.protocol"] == "sasl_plaintext"
    assert (config["sasl.mechanism"], config["sasl.kerberos.service.name"]) == ("GSSAPI", "broker")


class Provider(AbstractTokenProvider):  # type: ignore[misc]
    async def token(self) -> str:
        return "from the provider"


def test_a_token_is_asked_for_in_the_event_loop() -> None:
    made = app(faust.OAuthCredentials(oauth_cb=Provider()))
    ask = consumer_config(made)["oauth_cb"]

    async def asked() -> tuple[str, float]:
        made.event_loop = asyncio.get_running_loop()
        return await asyncio.to_thread(ask, "")

    token, expires = asyncio.run(asked())
    assert token == "from the provider"
    assert expires > time.time()


def test_authorities_of_a_tls_context(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(certificates.authority))
    config = consumer_config(app(faust.SSLCredentials(context)))
    assert config["security.protocol"] == "ssl"
    assert config["ssl.ca.pem"].split() == certificates.authority.read_text().split()
    assert config["ssl.endpoint.identification.algorithm"] == "https"


def test_unknown_credentials_are_refused() -> None:
    class Others(Credentials):
        protocol = AuthProtocol.SASL_PLAINTEXT
        mechanism = SASLMechanism.PLAIN

    with pytest.raises(ConfigError, match="Others is not known"):
        consumer_config(app(Others()))
