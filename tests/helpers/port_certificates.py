"""A test authority for a worker's HTTP port: server and client certificates as files, valid and flawed."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Pair(NamedTuple):
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates. Each one gets a file of its own, so that they can be swapped."""

    def __init__(self, folder: Path, name: str = "Tailrace port tests") -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._issued = 0
        self.file = folder / "authority.pem"
        made = self._made(self._name, self._key.public_key(), days=30, is_authority=True)
        self.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str = "server", *, days: int = 30, dns: str = "", self_signed: bool = False, password: str = ""
    ) -> Pair:
        """Issues a certificate for O=Shop,CN=name and 127.0.0.1; with negative `days` it has expired."""
        self._issued += 1
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Shop"), x509.NameAttribute(NameOID.COMMON_NAME, name)]
        )
        made = self._made(subject, key.public_key(), days=days, dns=dns, signing=key if self_signed else None)
        pair = Pair(self._folder / f"{self._issued}.pem", self._folder / f"{self._issued}.key")
        pair.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        encryption = (
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        )
        pair.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return pair

    def _made(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        days: int,
        dns: str = "",
        signing: ec.EllipticCurvePrivateKey | None = None,
        is_authority: bool = False,
    ) -> x509.Certificate:
        names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        names += [x509.DNSName(dns)] if dns else []
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if signing else self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=60))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(signing or self._key, hashes.SHA256())
        )
