"""Row 55 of the fault matrix: tokens and TLS certificates of a schema registry."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.registry import (
    SECRET,
    SLACK,
    ProxiedRegistry,
    endless_header,
    fails_within,
    fake_registry,
    proxied_registry,
    respond,
)
from helpers.tls import Certificates
from tailrace.errors import RegistryRefused
from tailrace.schemas.registry.client import RegistryClient, RegistryOptions
from tailrace.schemas.registry.requests import ATTEMPTS
from tailrace.testkit.stack import RegistryServer


@pytest.fixture
def proxied(registry: RegistryServer) -> Iterator[ProxiedRegistry]:
    with proxied_registry(registry) as proxied:
        yield proxied


class TestTokens:
    """Tokens that the client library fetches."""

    def settings(self, endpoint: str) -> dict[str, str]:
        return {
            "bearer.auth.credentials.source": "OAUTHBEARER",
            "bearer.auth.client.id": "me",
            "bearer.auth.client.secret": SECRET,
            "bearer.auth.scope": "registry",
            "bearer.auth.issuer.endpoint.url": f"{endpoint}/token",
            "bearer.auth.logical.cluster": "lsrc-1",
            "bearer.auth.identity.pool.id": "pool-1",
        }

    def test_a_token_is_fetched_and_sent(self) -> None:
        granted = respond(200, b'{"access_token": "t0ken", "token_type": "Bearer", "expires_in": 60}')
        with (
            fake_registry(granted) as issuer,
            fake_registry(respond(200)) as server,
            server.client(self.settings(issuer.url)) as client,
        ):
            assert client.subjects() == []
            assert server.requests[0][1]["Authorization"] == "Bearer t0ken"

    def test_a_refused_token_is_reported_without_the_secret(self) -> None:
        refusal = respond(401, b'{"error": "invalid_client", "error_description": "%s"}' % SECRET.encode())
        with (
            fake_registry(refusal) as issuer,
            fake_registry(respond(200)) as server,
            server.client(self.settings(issuer.url)) as client,
        ):
            with pytest.raises(RegistryRefused, match="no token") as refused:
                client.subjects()
            assert SECRET not in str(refused.value)
            assert server.requests == []

    def test_an_unavailable_token_endpoint_is_an_outage(self) -> None:
        with fake_registry(respond(200)) as server, server.client(self.settings("http://127.0.0.1:9")) as client:
            assert "token endpoint" in fails_within(SLACK, client.subjects).what

    def test_a_slow_token_endpoint_runs_into_the_timeout(self) -> None:
        over = threading.Event()
        with fake_registry(endless_header(over)) as issuer, fake_registry(respond(200)) as server:
            with server.client(self.settings(issuer.url), timeout=0.5) as client:
                fails_within(0.5 + SLACK, client.subjects)
            over.set()


class TestTls:
    """Certificates and handshakes."""

    def test_a_self_signed_certificate_is_refused_at_once(self, tmp_path: Path) -> None:
        with (
            fake_registry(respond(200), Certificates(tmp_path).server("self-signed")) as server,
            server.client() as client,
        ):
            with pytest.raises(RegistryRefused, match="no trusted connection") as refused:
                client.subjects()
            assert "self-signed" in refused.value.why
            assert "ssl.ca.location" in refused.value.remedy
            assert server.requests == []

    def test_the_authority_in_the_settings_is_trusted(self, tmp_path: Path) -> None:
        certificates = Certificates(tmp_path)
        settings = {"ssl.ca.location": str(certificates.authority)}
        with fake_registry(respond(200), certificates.server()) as server, server.client(settings) as client:
            assert client.subjects() == []

    def test_a_certificate_for_another_host_is_refused(self, tmp_path: Path) -> None:
        certificates = Certificates(tmp_path)
        settings = {"ssl.ca.location": str(certificates.authority)}
        with fake_registry(respond(200), certificates.server("name")) as server, server.client(settings) as client:
            with pytest.raises(RegistryRefused, match="no trusted connection") as refused:
                client.subjects()
            assert "127.0.0.1" in refused.value.why
            assert server.requests == []

    def test_tls_to_a_plain_port_is_refused(self, proxied: ProxiedRegistry) -> None:
        with (
            RegistryClient(RegistryOptions(f"https://{proxied.proxy.address}{proxied.path}", timeout=20)) as client,
            pytest.raises(RegistryRefused, match="no trusted connection"),
        ):
            client.subjects()

    # If the connection ends before the handshake, Python's ssl does not close the socket.
    @pytest.mark.filterwarnings("ignore:.*unclosed:ResourceWarning")
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_a_connection_that_ends_before_the_handshake_is_an_outage(self, proxied: ProxiedRegistry) -> None:
        proxied.proxy.point_at("127.0.0.1", 9)
        with RegistryClient(RegistryOptions(f"https://{proxied.proxy.address}", timeout=20)) as client:
            fails_within(SLACK, client.subjects)

    def test_a_handshake_that_ends_early_is_retried(self) -> None:
        """A load balancer without a backend reads the client's greeting and closes the connection."""
        connections = 0

        def read_and_close() -> None:
            nonlocal connections
            while connections < ATTEMPTS:
                connection, _ = listener.accept()
                with connection:
                    connections += bool(connection.recv(65536))

        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=read_and_close, daemon=True)
            thread.start()
            address = f"https://127.0.0.1:{listener.getsockname()[1]}"
            with RegistryClient(RegistryOptions(address, timeout=20)) as client:
                fails_within(SLACK, client.subjects)
            thread.join(SLACK)
        assert connections == ATTEMPTS
