"""Connections to a worker's HTTP port, with the token and the certificates that environment variables name.

Commands with `--worker` and `Outbox(worker=…)` use it. A token is never an argument of a command, because everybody on
the machine can read those, and it is never sent unencrypted to another machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPConnection
    from urllib.parse import SplitResult

TOKEN, TOKEN_FILE = "TAILRACE_WORKER_TOKEN", "TAILRACE_WORKER_TOKEN_FILE"
AUTHORITY = "TAILRACE_WORKER_CA"
CERTIFICATE, KEY = "TAILRACE_WORKER_CERTIFICATE", "TAILRACE_WORKER_KEY"
VARIABLES = (TOKEN, TOKEN_FILE, AUTHORITY, CERTIFICATE, KEY)


def open_connection(
    address: SplitResult, port: int | None, timeout: float, environ: Mapping[str, str] = os.environ
) -> HTTPConnection:
    """Returns a connection that is not open yet; raises ConfigError if a certificate cannot be used."""
    from http.client import HTTPConnection, HTTPSConnection

    if address.scheme != "https":
        return HTTPConnection(address.hostname or "", port, timeout=timeout)
    return HTTPSConnection(address.hostname or "", port, timeout=timeout, context=_context(environ))


def authorization(address: SplitResult, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the header with the token; empty if there is none. Raises ConfigError if it must not be sent."""
    token = _token(environ)
    if not token:
        return {}
    if address.scheme != "https" and not is_local(address.hostname or ""):
        raise ConfigError(
            f"the token would be sent unencrypted to {address.hostname}",
            why="The address of the worker begins with http://, and it is another machine.",
            remedy=f"Use https://, and name the authority of its certificate in {AUTHORITY} unless the system trusts "
            "it.",
        )
    return {"Authorization": f"Bearer {token}"}


def is_local(host: str) -> bool:
    """Whether that host is this machine."""
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(environ: Mapping[str, str]) -> str:
    if token := environ.get(TOKEN, "").strip():
        return _checked(token, TOKEN)
    name = environ.get(TOKEN_FILE, "")
    if not name:
        return ""
    try:
        with open(name, encoding="utf-8") as file:  # noqa: PTH123
            return _checked(file.read(10_000).strip(), TOKEN_FILE)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise ConfigError(
            f"the token of the worker cannot be read from {name}: {why}", remedy=f"Correct {TOKEN_FILE}, or the file."
        ) from None


def _checked(token: str, variable: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{variable} does not give a token",  # its value is not shown
            why="A token is one word of printable ASCII characters.",
            remedy="Give the token that the worker's operator created, and nothing else.",
        )
    return token


def _context(environ: Mapping[str, str]) -> ssl.SSLContext:
    import ssl

    authority, certificate = environ.get(AUTHORITY) or None, environ.get(CERTIFICATE, "")
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate:
            context.load_cert_chain(certificate, environ.get(KEY) or None, password=_no_password)
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(
            "the certificates for the worker cannot be used",
            why=f"{why}.",
            remedy=f"{AUTHORITY}, {CERTIFICATE} and {KEY} name files in PEM form; the key has no password.",
        ) from None
    return context


def _no_password() -> str:
    """OpenSSL would otherwise ask on the terminal."""
    return ""
