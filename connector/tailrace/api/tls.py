"""TLS of the HTTP port, with certificates that can be replaced while it runs.

The listener keeps one context for its whole life, which gives each new handshake to the current one. So a rotation is
complete or not at all: a certificate that does not fit its key is never used, and an authority that was removed is not
trusted any more. There is no session resumption: it would skip the check of the client's certificate.
"""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path

from tailrace.config.http_port import TlsSettings
from tailrace.errors import ConfigError


class RotatingTls:
    """The TLS context of a listener, and the certificates of new connections."""

    def __init__(self, settings: TlsSettings) -> None:
        """Raises ConfigError if a file cannot be used."""
        self._current, self._fingerprint = _loaded(settings)
        self.context, _ = _loaded(settings)
        self.context.sni_callback = self._choose  # called for each handshake, also without a name

    def reload(self, settings: TlsSettings) -> bool:
        """Reads the files again; returns whether they have changed. Raises ConfigError and keeps the old ones."""
        if _fingerprint(settings) == self._fingerprint:
            return False
        self._current, self._fingerprint = _loaded(settings)
        return True

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = self._current


def _loaded(settings: TlsSettings) -> tuple[ssl.SSLContext, bytes]:
    fingerprint = _fingerprint(settings)  # before they are loaded: a change meanwhile is noticed the next time
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # With 1.2, a client could resume a session from before its authority was removed.
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if settings.client_ca else ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    password = settings.key_password.reveal() if settings.key_password else ""
    try:
        context.load_cert_chain(settings.certificate, settings.key, lambda: password)
    except (OSError, ValueError) as error:
        raise _unusable(
            f"{settings.certificate} with the key {settings.key}",
            error,
            "Check both files: PEM, readable by this user, and the key of that certificate. If the key has a password, "
            "write `tls.key_password`.",
        ) from None
    if settings.client_ca is not None:
        try:
            context.load_verify_locations(settings.client_ca)
        except (OSError, ValueError) as error:
            raise _unusable(
                str(settings.client_ca), error, "Name a PEM file with the authorities of client certificates."
            ) from None
        context.verify_mode = ssl.CERT_OPTIONAL  # a wrong one is refused; without one, the client needs a token
    return context, fingerprint


def _fingerprint(settings: TlsSettings) -> bytes:
    found = hashlib.sha256()
    for file in (settings.certificate, settings.key, settings.client_ca):
        content = _content(file) if file is not None else b""
        found.update(len(content).to_bytes(8, "big") + content)
    found.update(settings.key_password.reveal().encode() if settings.key_password else b"")
    return found.digest()


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unusable(str(file), error, "Correct the path in the file of --http-settings, or create it.") from None


def _unusable(what: str, error: OSError | ValueError, remedy: str) -> ConfigError:
    why = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
    return ConfigError(f"the HTTP port cannot use {what}", why=f"{str(why)[:1].upper()}{str(why)[1:]}.", remedy=remedy)
