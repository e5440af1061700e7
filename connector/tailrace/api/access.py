"""Who sent a request and what that allows: tokens, client certificates, roles. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from tailrace.config.http_port import ADMIN, READ, HttpSettings, Role
from tailrace.errors import NotAuthorized

OPEN_PATHS = frozenset({"/livez", "/readyz"})
METRICS_PATH = "/metrics"
READING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
IDENTITY = "identity"
"""The key of the identity in the state of a request."""

_SHORT_NAMES = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
PeerCertificate = Mapping[str, Any]
"""A verified certificate in the form of `ssl.SSLSocket.getpeercert`."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sent a request: `who` is for the audit log."""

    who: str
    role: Role


LOCAL = Identity("this machine", ADMIN)
"""Everybody, on a port without authentication: only this machine can reach it."""


def needed_role(method: str, path: str, settings: HttpSettings) -> Role | None:
    """Returns the role that a request needs; None if it is open to everybody.

    Reads of events need more than that: their handlers call `require_admin`.
    """
    if method in ("GET", "HEAD") and (path in OPEN_PATHS or (path == METRICS_PATH and settings.metrics == "open")):
        return None
    return READ if method in READING else ADMIN


def allows(role: Role, needed: Role) -> bool:
    return role == ADMIN or needed == READ


def given_token(authorization: Iterable[bytes]) -> str | None:
    """Returns the token of a request: of Bearer, or the password of Basic. Empty if it has another form."""
    given = list(authorization)
    if not given:
        return None
    if len(given) > 1:
        return ""
    scheme, _, value = given[0].decode("latin-1").strip().partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


def of_token(token: str, settings: HttpSettings) -> Identity | None:
    """Returns whose token it is. It takes as long for a wrong one as for a right one."""
    digest = hashlib.sha256(token.encode(errors="replace")).digest()
    found: Identity | None = None
    for name, each in settings.tokens.items():
        if hmac.compare_digest(digest, each.digest):
            found = Identity(f"token:{name}", each.role)
    return found


def of_certificate(certificate: PeerCertificate, settings: HttpSettings) -> Identity | None:
    """Returns whose certificate it is. If several entries match, the one with the most rights counts."""
    subject, names = subject_of(certificate), alternative_names(certificate)
    found: Identity | None = None
    for each in settings.certificates.values():
        matches = each.subject == subject if each.subject is not None else each.san in names
        if matches and (found is None or each.role == ADMIN):
            found = Identity(f"certificate:{subject or each.san}", each.role)
    return found


def subject_of(certificate: PeerCertificate) -> str:
    """Returns the subject as `openssl x509 -subject -nameopt RFC2253` prints it."""
    parts = [
        "+".join(f"{_SHORT_NAMES.get(name, name)}={_escaped(value)}" for name, value in each)
        for each in certificate.get("subject", ())
    ]
    return ",".join(reversed(parts))


def alternative_names(certificate: PeerCertificate) -> set[str]:
    kinds = {"IP Address": "ip"}
    return {f"{kinds.get(kind, kind.lower())}:{name}" for kind, name in certificate.get("subjectAltName", ())}


def require_admin(request: Request, what: str) -> None:
    """Raises NotAuthorized unless the role is admin: for GETs that show events."""
    identity = identity_of(request)
    if identity is None or identity.role != ADMIN:
        raise not_authorized(identity, what)


def identity_of(request: Request) -> Identity | None:
    """Returns who sent a request; None for an open path on a port with authentication."""
    found: Identity | None = request.scope.get("state", {}).get(IDENTITY, LOCAL)
    return found


def not_authorized(identity: Identity | None, what: str) -> NotAuthorized:
    return NotAuthorized(
        f"{identity.who if identity else 'nobody'} may not {what}",
        why="Its role is `read`, which may only read states and settings, not events.",
        remedy="Use a token or certificate with the role `admin`.",
    )


def _escaped(value: str) -> str:
    text = "".join(f"\\{each}" if each in ',+"\\<>;' else each for each in value)
    if text[:1] in ("#", " "):
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if text.endswith(" ") and len(text) > 1 else text
