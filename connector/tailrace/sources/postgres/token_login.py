"""Logins to Postgres with a token instead of a password, as cloud providers issue them."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.auth.tokens import TokenProvider


class TokenAddress(NamedTuple):
    """What a token is valid for."""

    host: str
    port: int
    user: str


def token_address(conninfo: str) -> TokenAddress:
    """Returns host, port and user of a connection string; ValueError says why there can be no token for it."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        found = conninfo_to_dict(conninfo)
    except psycopg.Error:
        raise ValueError("it cannot be read") from None
    host, user = str(found.get("host") or ""), str(found.get("user") or "")
    if found.get("password"):
        raise ValueError("it contains a password")
    if not host or "," in host or host.startswith("/"):
        raise ValueError("it does not name one host")
    if not user:
        raise ValueError("it does not name a user")
    return TokenAddress(host, int(found.get("port") or 5432), user)


def with_token(conninfo: str, provider: TokenProvider) -> str:
    """Returns the connection string with a new token as its password."""
    from psycopg.conninfo import make_conninfo

    return make_conninfo(conninfo, password=provider.fetch().value)
