"""Errors of libpq and psycopg about a connection string itself; they quote parts of it, so their text is not shown.

A password that is not percent-encoded moves the borders of an address: what follows an `@`, a `/` or a `:` in it is
then taken for a host, a port or an option, and quoted as such.
"""

from __future__ import annotations

import re

import psycopg

_MISREAD = re.compile(r"connection is bad: invalid|failed to resolve host '[^']*@|Servname not supported|invalid port")

MALFORMED_WHY = (
    "A part has no `=`, an option is not known, or a password holds a character that ends it early. "
    "The connection string is not shown, because it may hold a password."
)
MALFORMED_REMEDY = (
    "Correct it: postgresql://user@host:5432/database, or host=… dbname=…. In an address write special characters of a "
    "password as %XX (@ is %40, / is %2F, % is %25); in host=… form put a password with spaces in single quotes."
)

POSTGRES_TLS = "sslmode, sslrootcert, sslcert and sslkey of the connection string"
"""What says which certificates are trusted, and which one is shown."""


def is_malformed(error: psycopg.Error) -> bool:
    """Whether the error is about the connection string and not about the server."""
    if isinstance(error, psycopg.ProgrammingError):
        return error.sqlstate is None
    return error.sqlstate is None and _MISREAD.search(str(error)) is not None
