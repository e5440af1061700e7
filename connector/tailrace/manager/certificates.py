"""Reads when the certificates of servers expire, by a TLS handshake of its own that verifies nothing and sends nothing.

Drivers do not show the certificate of their connection. Whether a certificate is trusted is not decided here.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from tailrace.config.model import PipelineSettings

CONNECT_SECONDS = 3.0
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)
"""The message with which a client asks Postgres for TLS."""
_SEQUENCE, _CONTEXT_0, _UTC_TIME = 0x30, 0xA0, 0x17


class TlsServer(NamedTuple):
    """A server that is reached over TLS. `postgres`: TLS begins after a message of its protocol."""

    name: str
    host: str
    port: int
    postgres: bool = False
    certificate: str | None = None
    """The file with the client's certificate, which a server may ask for."""
    key: str | None = None


def expiry(server: TlsServer) -> float:
    """Returns when the server's certificate expires, as a Unix time. Raises OSError or ValueError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if server.certificate:
        context.load_cert_chain(server.certificate, server.key)
    with closing(socket.create_connection((server.host, server.port), CONNECT_SECONDS)) as plain:
        plain.settimeout(CONNECT_SECONDS)
        if server.postgres:
            plain.sendall(_SSL_REQUEST)
            if plain.recv(1) != b"S":
                raise ValueError("the server has no TLS")
        with context.wrap_socket(plain, server_hostname=server.host) as encrypted:
            return not_after(encrypted.getpeercert(binary_form=True) or b"")


def not_after(certificate: bytes) -> float:
    """Returns the end of the validity of a certificate in DER, as a Unix time. Raises ValueError."""
    try:
        (_, whole), *_ = _parts(certificate)
        (_, signed), *_ = _parts(whole)
        fields = [part for part in _parts(signed) if part[0] != _CONTEXT_0]
        validity = fields[3][1]  # after the serial number, the algorithm and the issuer
        (_, _), (kind, text) = _parts(validity)
        form = "%y%m%d%H%M%SZ" if kind == _UTC_TIME else "%Y%m%d%H%M%SZ"
        return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC).timestamp()
    except (IndexError, ValueError, TypeError):
        raise ValueError("the certificate cannot be read") from None


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields tag and content of each DER element."""
    at = 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            digits = length & 0x7F
            length, at = int.from_bytes(data[at : at + digits], "big"), at + digits
        if at + length > len(data):
            raise ValueError("it is cut off")
        yield tag, data[at : at + length]
        at += length


def tls_servers(settings: PipelineSettings, postgres_parameter: Callable[[str], str]) -> list[TlsServer]:
    """Returns the servers of a pipeline that are reached over TLS.

    `postgres_parameter` returns a parameter of the connection string, as libpq understands it.
    """
    found: list[TlsServer] = []
    source, kafka = settings.source, settings.kafka
    if source.mongo is not None:
        found += _mongo(source.mongo.reveal())
    elif postgres_parameter("sslmode") in ("require", "verify-ca", "verify-full"):
        host, port = postgres_parameter("host").split(",")[0], postgres_parameter("port").split(",")[0]
        if host and not host.startswith("/"):
            own = postgres_parameter("sslcert"), postgres_parameter("sslkey")
            found.append(TlsServer("source", host, int(port or 5432), True, own[0] or None, own[1] or None))
    client = kafka.client_settings()
    if str(client.get("security.protocol", "")).lower().endswith("ssl"):
        host, _, port = kafka.bootstrap.split(",")[0].strip().rpartition(":")
        own_file = str(client.get("ssl.certificate.location", "")) or None
        own_key = str(client.get("ssl.key.location", "")) or None
        # A key with a password cannot be used here; a server may then refuse the handshake.
        own_file = None if client.get("ssl.key.password") else own_file
        found.append(TlsServer("kafka", host.split("://")[-1].strip("[]"), int(port), False, own_file, own_key))
    registry = settings.schemas.registry if settings.schemas else None
    if registry is not None and registry.url.startswith("https://"):
        parts = urlsplit(registry.url)
        found.append(TlsServer("registry", parts.hostname or "", parts.port or 443))
    return found


def _mongo(uri: str) -> list[TlsServer]:
    parts = urlsplit(uri)
    options = {name.lower(): values[-1] for name, values in parse_qs(parts.query).items()}
    if options.get("tls", options.get("ssl", "")).lower() != "true" or parts.scheme != "mongodb":
        return []
    host, _, port = parts.netloc.rpartition("@")[2].split(",")[0].partition(":")
    own = options.get("tlscertificatekeyfile")
    return [TlsServer("source", host, int(port or 27017), False, own, None)]
