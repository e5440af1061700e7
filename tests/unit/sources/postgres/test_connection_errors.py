"""Errors of Postgres: which of them halt a pipeline and which are retried."""

from __future__ import annotations

import pytest

from tailrace.errors import AccessRefused, SourceError, SourceReadOnly, SourceUnavailable, TailraceError
from tailrace.sources.postgres.connection_errors import translate_error


@pytest.mark.parametrize(
    ("sqlstate", "text", "expected"),
    [
        (None, 'connection failed: FATAL:  password authentication failed for user "u"', AccessRefused),
        (None, "connection failed: fe_sendauth: no password supplied", AccessRefused),
        (None, 'FATAL:  no pg_hba.conf entry for host "127.0.0.1"', AccessRefused),
        (None, 'FATAL:  database "shop" does not exist', AccessRefused),
        ("42501", "permission denied for table outbox", AccessRefused),
        ("25006", "cannot execute CREATE PUBLICATION in a read-only transaction", SourceReadOnly),
        ("42601", 'syntax error at or near "x"', SourceError),
        ("57P01", "terminating connection due to administrator command", SourceUnavailable),
        (None, "FATAL:  the database system is starting up", SourceUnavailable),
        (None, "Connection refused", SourceUnavailable),
        (None, "", SourceUnavailable),
    ],
)
def test_each_error_has_its_own_type(sqlstate: str | None, text: str, expected: type[TailraceError]) -> None:
    error = translate_error(sqlstate, text)
    assert type(error) is expected
    assert error.remedy
