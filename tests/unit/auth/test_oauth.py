"""OAuth client credentials against a real token server over TLS: what is sent, and every answer that is no token."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.tls import FLAWS, HOST, Certificates, Flaw
from helpers.token_server import CLIENT, SECRET, TokenServer
from tailrace.auth.oauth import OAuthClient
from tailrace.errors import CertificateInvalid, ConfigError, TokenRefused, TokenUnavailable


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture
def server(certificates: Certificates) -> Iterator[TokenServer]:
    with TokenServer(certificates, seconds=120) as server:
        yield server


@pytest.fixture
def client(server: TokenServer, certificates: Certificates) -> OAuthClient:
    return OAuthClient(
        server.url,
        CLIENT,
        SECRET,
        "kafka",
        (("audience", "kafka"),),
        (("pool", "p-1"),),
        str(certificates.authority),
        5,
    )


def test_a_token(server: TokenServer, client: OAuthClient) -> None:
    before = time.time()
    token = client.fetch()
    assert token.value.count(".") == 2
    assert before + 120 <= token.expires_at <= time.time() + 120
    assert (token.principal, dict(token.extensions)) == (CLIENT, {"pool": "p-1"})
    assert server.requests == [{"grant_type": "client_credentials", "scope": "kafka", "audience": "kafka"}]
    assert SECRET not in repr(client)


def test_a_wrong_secret_is_not_repeated(server: TokenServer, client: OAuthClient) -> None:
    with pytest.raises(TokenRefused, match=r"status 401 \(invalid_client\)") as caught:
        replace(client, client_secret="another-secret").fetch()
    assert server.asked == 1
    assert "another-secret" not in str(caught.value)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_in_trouble(server: TokenServer, client: OAuthClient, status: int) -> None:
    server.respond = lambda: (status, b"<html>secret words</html>")
    with pytest.raises(TokenUnavailable, match=f"status {status}") as caught:
        client.fetch()
    assert "secret words" not in str(caught.value)
    assert "token_url" in caught.value.remedy


@pytest.mark.parametrize("status", [302, 307, 400, 403, 404])
def test_a_refusal(server: TokenServer, client: OAuthClient, status: int) -> None:
    """A redirect, too: it is not followed."""
    server.respond = lambda: (status, b'{"error": "NOT a code <b>"}')
    with pytest.raises(TokenRefused, match=f"status {status}\n"):
        client.fetch()
    assert server.asked == 1


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"{}", "no access_token"),
        (b'{"access_token": ""}', "no access_token"),
        (b'{"access_token": 5}', "no access_token"),
        (b'{"access_token": "a b"}', "no access_token"),
        (b'{"access_token": "a\\nb"}', "no access_token"),
        (b'{"access_token": "abc", "token_type": "mac"}', "not a bearer token"),
        (b'{"access_token": "abc", "expires_in": 0}', "no valid expires_in"),
        (b'{"access_token": "abc", "expires_in": "soon"}', "no valid expires_in"),
        (b'{"access_token": "abc", "expires_in": null}', "no valid expires_in"),
    ],
)
def test_garbage(server: TokenServer, client: OAuthClient, body: bytes, why: str) -> None:
    server.respond = lambda: (200, body)
    with pytest.raises(TokenUnavailable, match=why):
        client.fetch()


def test_a_server_that_does_not_say_how_long_a_token_lives(server: TokenServer, client: OAuthClient) -> None:
    server.respond = lambda: (200, json.dumps({"access_token": "opaque"}).encode())
    assert 0 < client.fetch().expires_at - time.time() <= 300


def test_a_server_that_is_down(client: OAuthClient) -> None:
    with pytest.raises(TokenUnavailable, match="does not answer"):
        replace(client, token_url=f"https://{HOST}:9/token").fetch()


def test_a_server_that_hangs(server: TokenServer, client: OAuthClient) -> None:
    ended = time.monotonic() + 30

    def hang() -> tuple[int, bytes]:
        while time.monotonic() < ended:
            time.sleep(0.05)
        return 200, b"{}"

    server.respond = hang
    with pytest.raises(TokenUnavailable, match="does not answer"):
        replace(client, timeout=0.3).fetch()
    ended = 0


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_certificate_that_is_not_accepted(certificates: Certificates, client: OAuthClient, flaw: Flaw) -> None:
    server = TokenServer(FlawedCertificates(certificates, flaw))
    with server, pytest.raises(CertificateInvalid, match="of the token server"):
        replace(client, token_url=server.url).fetch()
    assert server.asked == 0


class FlawedCertificates(Certificates):
    """Issues server certificates with a flaw."""

    def __init__(self, certificates: Certificates, flaw: Flaw) -> None:
        self.__dict__.update(vars(certificates))
        self._flaw: Flaw = flaw

    def server(self, flaw: Flaw = "") -> ssl.SSLContext:
        return super().server(flaw or self._flaw)


def test_a_file_of_certificates_that_is_missing(client: OAuthClient, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        replace(client, ca_file=str(tmp_path / "none.pem")).fetch()
