"""The expiry of certificates: DER of real certificates, and real TLS servers."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509

from helpers.webhook import certificate
from tailrace.config.model import PipelineSettings
from tailrace.manager.certificates import TlsServer, expiry, not_after, tls_servers


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return certificate(tmp_path, "127.0.0.1")


def expected(file: Path) -> float:
    return x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc.timestamp()


def test_a_certificate(file: Path) -> None:
    der = ssl.PEM_cert_to_DER_cert(file.read_text()[file.read_text().index("-----BEGIN CERT") :])
    assert not_after(der) == expected(file)


@pytest.mark.parametrize("data", [b"", b"\x30", b"\x30\x05abc", b"\x30\x84\xff\xff\xff\xff", b"hello" * 100])
def test_no_certificate(data: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        not_after(data)


@pytest.mark.parametrize("postgres", [False, True])
def test_a_server(file: Path, *, postgres: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                if postgres:
                    assert client.recv(8) == b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
                    client.sendall(b"S")
                context.wrap_socket(client, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            assert expiry(TlsServer("kafka", *listener.getsockname(), postgres)) == expected(file)
        finally:
            thread.join()


def settings(**sections: object) -> PipelineSettings:
    source = {"postgres": "host=db", "table": "public.outbox"}
    return PipelineSettings.model_validate(
        {"pipeline": "orders", "source": source, "kafka": {"bootstrap": "k1:9093,k2:9093"}, **sections}
    )


def test_servers_without_tls() -> None:
    assert tls_servers(settings(), {"sslmode": "prefer", "host": "db"}.get) == []  # type: ignore[arg-type]


def test_servers_with_tls() -> None:
    kafka = {"bootstrap": "k1:9093,k2:9093", "settings": {"security.protocol": "SASL_SSL"}}
    asked = {"sslmode": "verify-full", "host": "db1,db2", "port": "5433,5434", "sslcert": "", "sslkey": ""}
    found = tls_servers(settings(kafka=kafka), asked.__getitem__)
    assert found == [TlsServer("source", "db1", 5433, postgres=True), TlsServer("kafka", "k1", 9093)]


def test_mongo_with_tls() -> None:
    source = {"mongo": "mongodb://u:p@m1:27018,m2/?replicaSet=rs&tls=true", "collection": "shop.outbox"}
    (found,) = tls_servers(settings(source=source, outbox={"layout": "document"}), lambda _: "")
    assert (found.host, found.port) == ("m1", 27018)
