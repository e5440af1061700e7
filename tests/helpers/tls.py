"""Certificates with every kind of flaw, and a TLS proxy in front of a server without TLS.

The proxy answers the client's request for TLS as Postgres does, sends its certificate and forwards what it decrypts.
Clients of Kafka and MongoDB start with TLS at once, without the request. Servers with their own TLS are in
`helpers.secure_kafka` and `helpers.secure_servers`.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Flaw = Literal["", "name", "authority", "expired", "self-signed"]
FLAWS: tuple[Flaw, ...] = ("name", "authority", "expired", "self-signed")
SSL_REQUEST = bytes.fromhex("0000000804d2162f")
"""The first message of libpq when it requests TLS."""
HOST = "127.0.0.1"


class CertificateFiles(NamedTuple):
    """A certificate, its private key, and a file with both."""

    certificate: Path
    key: Path
    both: Path


class Certificates:
    """A trusted certificate authority (`authority`), which issues server certificates for 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._issued = 0
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("Tailrace tests")
        self.authority = folder / "authority.pem"
        self._write(self.authority, self._made(self._name, self._name, self._key, self._key, is_authority=True))

    def server(self, flaw: Flaw = "") -> ssl.SSLContext:
        """Returns the TLS context of a server whose certificate is correct except for `flaw`."""
        files = self.files("server", flaw)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        return context

    def server_for_clients(self) -> ssl.SSLContext:
        """Returns a context that also demands a certificate of the client."""
        context = self.server()
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.authority)
        return context

    def files(self, name: str, flaw: Flaw = "", *, days: float = 30) -> CertificateFiles:
        """Issues a certificate for 127.0.0.1 to `name`, correct except for `flaw`, and writes it to new files."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer, signing = self._name, self._key
        if flaw == "authority":
            issuer, signing = _named("Somebody else"), ec.generate_private_key(ec.SECP256R1())
        if flaw == "self-signed":
            issuer, signing = _named(name), key
        certificate = self._made(
            _named(name),
            issuer,
            key,
            signing,
            address="127.0.0.2" if flaw == "name" else HOST,
            days=-1 if flaw == "expired" else days,
        )
        self._issued += 1
        both, *files = [self._folder / f"{name}-{flaw}{self._issued}.{kind}" for kind in ("both.pem", "pem", "key")]
        self._write(files[0], certificate)
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        files[1].write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
        both.write_bytes(files[1].read_bytes() + files[0].read_bytes())
        files[1].chmod(0o600)  # libpq refuses a key that others can read
        return CertificateFiles(*files, both)

    @staticmethod
    def _made(
        subject: x509.Name,
        issuer: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        signing: ec.EllipticCurvePrivateKey,
        *,
        address: str = HOST,
        days: float = 30,
        is_authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=60))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(names, critical=False)
            .sign(signing, hashes.SHA256())
        )

    @staticmethod
    def _write(file: Path, certificate: x509.Certificate) -> None:
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


class TlsFront:
    """Speaks TLS on `port` and forwards to `target`; `context` may be changed while it runs."""

    def __init__(self, context: ssl.SSLContext, target: int = 0, *, postgres: bool = False) -> None:
        self.context = context
        self.target = target
        self._postgres = postgres
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        # Closing alone would not end `accept` in the thread.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Ends every open connection."""
        for each in list(self._open):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended by itself

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with plain:
            try:
                if self._postgres:
                    if plain.recv(8) != SSL_REQUEST:
                        return
                    plain.sendall(b"S")
                with (
                    self.context.wrap_socket(plain, server_side=True) as client,
                    socket.create_connection((HOST, self.target)) as server,
                ):
                    self._open |= {client, server}
                    back = threading.Thread(target=_forward, args=(server, client), daemon=True)
                    back.start()
                    _forward(client, server)
                    back.join()
                    self._open -= {client, server}
            except OSError:
                pass  # the client rejected the certificate, or a connection has ended


def _forward(source: socket.socket, target: socket.socket) -> None:
    try:
        while chunk := source.recv(65536):
            target.sendall(chunk)
    except OSError:
        pass  # the other direction ends, too
    for each in (source, target):
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
