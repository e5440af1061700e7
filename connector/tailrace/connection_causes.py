"""Causes of failed connections that all servers share: a certificate that is not accepted, no free file descriptor."""

from __future__ import annotations

import errno
import os
import re

from tailrace.errors import CertificateInvalid

NO_FILES = "This process may open no more files, so it cannot connect: raise its limit (ulimit -n, LimitNOFILE=)."

_UNACCEPTED = re.compile(
    r"certificate[ _]verify[ _]failed|server certificate for .* does not match|root certificate file|"
    r"(hostname|ip address) mismatch|(certificate|provider) signature failure|"
    r"alert (unknown ca|bad certificate|certificate \w+)",
    re.IGNORECASE | re.DOTALL,
)


def certificate_error(text: str, server: str, settings: str) -> CertificateInvalid | None:
    """Returns the error if a driver's error text is about a certificate; `settings` names the settings for trust."""
    if _UNACCEPTED.search(text) is None:
        return None
    return CertificateInvalid(
        f"the certificate of {server} is not accepted: {' '.join(text.split())[:300]}",
        why="It is for another host name, signed by an untrusted authority or by itself, or expired; or the server "
        "does not accept our certificate. Waiting does not help.",
        remedy=f"Connect by the host name in the certificate, and check {settings}. `openssl x509 -noout -text` shows "
        "the names, the issuer and the dates of a certificate. Then start again. No events were lost.",
    )


def out_of_files() -> str:
    """Returns why no connection can be opened if this process may open no more files; else an empty text."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return NO_FILES if error.errno in (errno.EMFILE, errno.ENFILE) else ""
    return ""
