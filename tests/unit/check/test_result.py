"""How checks are run, and how numbers are formatted."""

from __future__ import annotations

import pytest

from tailrace.check.result import (
    CheckResult,
    State,
    failed,
    gather,
    hosts_of,
    human_bytes,
    human_seconds,
    is_loopback,
    ok,
)
from tailrace.errors import AccessRefused, SourceUnavailable


def refused() -> CheckResult:
    raise AccessRefused("no", why="because", remedy="ask")


def gone() -> CheckResult:
    raise SourceUnavailable("gone", remedy="Tailrace reconnects by itself.")


def test_a_check_that_raises_fails_and_the_next_one_still_runs() -> None:
    checks = gather([("a", refused), ("b", lambda: None), ("c", lambda: ok("c", "fine"))])
    assert checks == [
        CheckResult("a", State.FAIL, "AccessRefused: no because", "ask"),
        CheckResult("c", State.OK, "fine"),
    ]


def test_an_unavailable_server_ends_the_checks() -> None:
    checks = gather([("a", gone), ("b", lambda: ok("b", "not run"))])
    assert [(check.name, check.state) for check in checks] == [("a", State.FAIL)]
    assert "run it again" in checks[0].remedy


def test_a_result_is_one_line() -> None:
    error = AccessRefused("two\n  lines", why="and\nmore", remedy="do\nthis")
    assert failed("x", error) == CheckResult("x", State.FAIL, "AccessRefused: two lines and more", "do this")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "/run/postgresql", "@x", ""])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "db", "localhost.example.com", "fe80::1%eth0", "0.0.0.0"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_hosts() -> None:
    assert hosts_of("a:9092, PLAINTEXT://b:9093,[::1]:1,c") == ["a", "b", "[::1]", "c"]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 kB"), (200 << 20, "200 MB"), (3 << 30, "3.0 GB"), (2 << 40, "2.0 TB")],
)
def test_human_bytes(number: int, text: str) -> None:
    assert human_bytes(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59, "59 s"), (119, "119 s"), (600, "10 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_human_seconds(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text
