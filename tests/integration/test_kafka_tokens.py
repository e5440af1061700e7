"""Logins to Kafka with OAuth tokens, which a real broker verifies with the keys of a token server.

The tokens live for seconds, and the broker closes connections whose token has expired: every client renews in time.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.command import Tailrace
from helpers.secure_kafka import SecureBroker
from helpers.shop import Shop, close_shop, open_shop
from helpers.tls import Certificates
from helpers.token_package import install_provider
from helpers.token_server import CLIENT, SECRET, TokenServer
from tailrace.auth.oauth import OAuthClient
from tailrace.errors import KafkaUnavailable, PublishError, TokenRefused
from tailrace.kafka import tail
from tailrace.kafka.client import KafkaOptions
from tailrace.kafka.tail import ClusterObserver
from tailrace.projections.faust.app import ProjectionApp, projection_app
from tailrace.projections.faust.credentials import token_credentials
from tailrace.projections.reader.connection import client_config
from tailrace.projections.reader.offset_queries import OffsetQueries
from tailrace.testkit.stack import PostgresServer, wait_until
from tailrace.testkit.topic_reader import header, read_all

pytestmark = pytest.mark.slow
"""Its broker validates signed tokens; tokens live for seconds, and the tests wait for their renewal."""
VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
ACLS = [
    "--operation All --topic '*'",
    "--operation All --transactional-id '*'",
    "--operation All --group '*'",
    "--operation All --cluster",
]
TOKEN_SECONDS = 8
PROVIDER = f"""
from tailrace.auth.oauth import OAuthClient

def token(request):
    assert request.service == "kafka"
    options = request.options
    return OAuthClient(options["url"], "{CLIENT}", options["api_token"], ca_file=options["ca"]).fetch()
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def shared_server(certificates: Certificates) -> Iterator[TokenServer]:
    with TokenServer(certificates, seconds=TOKEN_SECONDS) as server:
        yield server


@pytest.fixture
def server(shared_server: TokenServer) -> Iterator[TokenServer]:
    yield shared_server
    shared_server.respond = None


@pytest.fixture(scope="module")
def broker(certificates: Certificates, shared_server: TokenServer) -> Iterator[SecureBroker]:
    reauth = {"listener.name.oauth.connections.max.reauth.ms": str(TOKEN_SECONDS * 1000)}
    with SecureBroker(certificates, jwks=shared_server.jwks, properties=reauth) as broker:
        broker.grant(CLIENT, ACLS)
        yield broker


@pytest.fixture
def shop(postgres: PostgresServer, broker: SecureBroker, server: TokenServer, tmp_path: Path) -> Iterator[Shop]:
    shop = open_shop(postgres, broker, tmp_path)
    shop.settings["kafka"] |= {
        "bootstrap": broker.address("OAUTH"),
        "settings": broker.trust,
        "auth": {
            "oauth": {
                "token_url": server.url,
                "client_id": CLIENT,
                "client_secret": "${env:CLIENT_SECRET}",
                "ca_file": str(broker.certificates.authority),
            }
        },
    }
    shop.configure(retries={"base": 0.2, "maximum": 1})
    yield shop
    close_shop(shop)


def arrived(shop: Shop, event: str) -> None:
    """Waits until the event is published; reads through the broker's internal listener."""
    address = shop.kafka.direct_bootstrap
    wait_until(
        lambda: event in {header(each, "id") for each in read_all(address, [shop.topic])}, 60, what=f"the event {event}"
    )


def test_a_pipeline_renews_its_token_in_time(
    shop: Shop, server: TokenServer, tailrace: Tailrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = shop.start(CLIENT_SECRET=SECRET)
    arrived(shop, shop.insert(VALID))
    issued = server.issued
    wait_until(lambda: server.issued >= issued + 2, 60, what="two more tokens")
    arrived(shop, shop.insert(VALID))
    assert connector.waits == []
    assert "SASL" not in connector.log
    monkeypatch.setenv("CLIENT_SECRET", SECRET)
    checks = {each["name"]: each for each in tailrace("check", shop.file)["checks"]}
    assert checks["kafka"]["found"].startswith("1 broker")
    assert checks["kafka encryption"]["found"].startswith("sasl_ssl")
    assert connector.stop() == 0


@pytest.mark.slow
def test_a_provider_of_an_installed_package(
    shop: Shop, server: TokenServer, tailrace: Tailrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets its options, and its tokens are renewed like those of OAuth."""
    program = install_provider(tmp_path, "broker", PROVIDER, monkeypatch)
    options = {"url": server.url, "ca": str(shop.kafka.certificates.authority), "api_token": "${env:PROVIDER_SECRET}"}  # type: ignore[attr-defined]
    shop.settings["kafka"]["auth"] = {"provider": "broker", "options": options}
    shop.configure()
    monkeypatch.setenv("PROVIDER_SECRET", SECRET)
    assert [each for each in tailrace("check", shop.file)["checks"] if each["state"] == "FAIL"] == []
    connector = shop.start(program=[str(program)])
    arrived(shop, shop.insert(VALID))
    issued = server.issued
    wait_until(lambda: server.issued >= issued + 2, 60, what="two more tokens")
    arrived(shop, shop.insert(VALID))
    assert connector.waits == []
    assert SECRET not in connector.log
    assert connector.stop() == 0
    monkeypatch.setenv("PROVIDER_SECRET", "wrong-4711")
    refused = shop.start(wait=False, program=[str(program)])
    refused.failed("TokenRefused")
    assert "wrong-4711" not in refused.log


def test_a_token_server_that_is_unavailable_for_a_while(shop: Shop, server: TokenServer) -> None:
    connector = shop.start(CLIENT_SECRET=SECRET)
    arrived(shop, shop.insert(VALID))
    server.respond = lambda: (200, b"<html>maintenance</html>")
    event = shop.insert(VALID)
    # Events are published until the last token expires; then the attempts fail, and say why.
    connector.says("TokenUnavailable", 90)
    assert "its answer is not JSON" in connector.log
    waiting = shop.insert(VALID)
    server.respond = None
    arrived(shop, event)
    arrived(shop, waiting)
    assert connector.stop() == 0


def test_a_wrong_secret(shop: Shop) -> None:
    wrong = "wrong-secret-0815"
    connector = shop.start(wait=False, CLIENT_SECRET=wrong)
    connector.failed("TokenRefused")
    assert "status 401 (invalid_client)" in connector.log
    assert wrong not in connector.log


@pytest.mark.parametrize("flaw", ["signature", "audience"])
def test_a_token_that_kafka_refuses(
    broker: SecureBroker, server: TokenServer, monkeypatch: pytest.MonkeyPatch, flaw: str
) -> None:
    monkeypatch.setattr(tail, "LOOK_TIMEOUT", 3.0)
    client = OAuthClient(server.url, CLIENT, SECRET, flaw, ca_file=str(broker.certificates.authority))
    options = KafkaOptions(broker.address("OAUTH"), "tokens", settings=broker.trust, auth=client)
    foreign = server.token(aud="others") if flaw == "audience" else server.token()[:-8] + "AAAAAAAA"
    server.respond = lambda: (200, b'{"access_token": "%s", "expires_in": 60}' % foreign.encode())
    with pytest.raises(PublishError, match="topics") as caught:
        ClusterObserver(options).look()
    assert "kafka.auth" in caught.value.remedy
    assert foreign not in str(caught.value)


def app(broker: SecureBroker, server: TokenServer, secret: str = SECRET, scope: str = "") -> ProjectionApp:
    authority = str(broker.certificates.authority)
    credentials = token_credentials(
        context=ssl.create_default_context(cafile=authority),
        oauth={
            "token_url": server.url,
            "client_id": CLIENT,
            "client_secret": secret,
            "ca_file": authority,
            "scope": scope,
        },
    )
    return projection_app("tokens", f"kafka://{broker.address('OAUTH')}", broker_credentials=credentials)


def test_the_clients_of_a_projection(broker: SecureBroker, server: TokenServer) -> None:
    """Faust's client by aiokafka, and the reader's by librdkafka, also after its first token has expired."""
    projecting = app(broker, server)
    asyncio.run(projecting._wait_for_kafka())
    broker.create_topic("tokens.orders")
    queries = OffsetQueries(client_config(projecting), "tokens.projections")
    assert partitions_of("tokens.orders", queries) == 1
    later = time.time() + TOKEN_SECONDS + 2
    wait_until(lambda: time.time() > later, 30)
    assert partitions_of("tokens.orders", queries) == 1


def partitions_of(topic: str, queries: OffsetQueries) -> int:
    """Asks as the reader does: a broker that closes a connection meanwhile is asked again."""

    def found() -> int:
        try:
            return len(asyncio.run(queries.ends([topic])))
        except KafkaUnavailable:
            return 0

    return wait_until(found, 60, what=f"an answer about {topic}")


def test_a_projection_with_a_wrong_secret(broker: SecureBroker, server: TokenServer) -> None:
    with pytest.raises(TokenRefused, match="invalid_client"):
        asyncio.run(app(broker, server, "another-secret")._wait_for_kafka())


def test_a_projection_waits_for_its_token_server(
    broker: SecureBroker, server: TokenServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.respond = lambda: (503, b"")
    projecting = app(broker, server, scope="no token of it is known")

    async def started() -> None:
        waiting = asyncio.create_task(projecting._wait_for_kafka())
        while not any(fields_of(each).get("error") == "TokenUnavailable" for each in caplog.records):
            await asyncio.sleep(0.05)
        server.respond = None
        await waiting

    asyncio.run(asyncio.wait_for(started(), 60))
    assert SECRET not in caplog.text


def fields_of(record: Any) -> dict[str, Any]:
    return getattr(record, "fields", {})
