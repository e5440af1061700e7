"""Certificates that are not accepted: one named error for every server. Drivers tell it in their texts only."""

from __future__ import annotations

import re

from tailrace.errors import CertificateInvalid

_UNACCEPTED = re.compile(
    r"certificate[ _]verify[ _]failed|server certificate for .* does not match|root certificate file|"
    r"(hostname|ip address) mismatch|alert (unknown ca|bad certificate|certificate \w+)",
    re.IGNORECASE | re.DOTALL,
)


def certificate_error(text: str, server: str, settings: str) -> CertificateInvalid | None:
    """The error if `text` tells of a certificate; `settings` names what says which certificates are trusted."""
    if _UNACCEPTED.search(text) is None:
        return None
    return CertificateInvalid(
        f"the certificate of {server} is not accepted: {' '.join(text.split())[:300]}",
        why="It is of another name, of an authority that is not trusted here, signed by itself, or expired; or the "
        "server does not accept ours. Waiting does not change that.",
        remedy=f"Connect by the name in the certificate, and check {settings}. `openssl x509 -noout -text` shows the "
        "names, the issuer and the dates of a certificate. Then start again: nothing was lost.",
    )
