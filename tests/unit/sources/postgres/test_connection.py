"""Tests of connection strings that libpq itself refuses, before any server is reached."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.errors import ConfigError
from tailrace.projections.postgres.session import connect
from tailrace.sources.postgres.connection import PgConnection

MALFORMED = [
    "host=127.0.0.1 no_such_option=s3cret",
    "host=127.0.0.1 password=my s3cret word",
    "postgresql://u:s3cret%zz@127.0.0.1/d",
    "postgresql://u:p@s3cret@127.0.0.1/d",
    "postgresql://u:s3cret/x@127.0.0.1/d",
    "host=127.0.0.1 port=s3cret",
    "host=127.0.0.1 sslmode=s3cret",
]
"""libpq would quote parts of each; a retry does not help."""


@pytest.mark.parametrize("conninfo", MALFORMED)
def test_a_malformed_connection_string_is_refused_and_not_shown(conninfo: str) -> None:
    with pytest.raises(ConfigError, match="libpq") as caught:
        PgConnection(conninfo, replication=False, timeout=1)
    assert "s3cret" not in str(caught.value)
    assert "%40" in caught.value.remedy


@pytest.mark.parametrize("conninfo", MALFORMED)
def test_the_same_holds_for_projections(conninfo: str) -> None:
    with pytest.raises(ConfigError, match="libpq") as caught:
        asyncio.run(connect(conninfo, "summary", ""))
    assert "s3cret" not in str(caught.value)
