"""Results of checks: OK, WARN or FAIL, with a remedy to copy.

WARN means that it works, but a careful operator would change it. FAIL means that `tailrace run` stops, now or soon.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from tailrace.errors import TailraceError, Unavailable

CLOCK_SECONDS = 5.0
"""Smaller differences of clocks are not reported; synchronised clocks differ by milliseconds."""


class State(Enum):
    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


class CheckResult(NamedTuple):
    """The result of one check. `remedy` is the SQL, command or setting that fixes it; empty if OK."""

    name: str
    state: State
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> CheckResult:
    return CheckResult(name, State.OK, found)


def warn(name: str, found: str, remedy: str) -> CheckResult:
    return CheckResult(name, State.WARN, found, remedy)


def fail(name: str, found: str, remedy: str) -> CheckResult:
    return CheckResult(name, State.FAIL, found, remedy)


def failed(name: str, error: TailraceError, remedy: str = "") -> CheckResult:
    """Turns an error into a failed check, on one line. `remedy` replaces one that is about a running pipeline."""
    found = " ".join(f"{error.code}: {error.what} {error.why}".split())
    return fail(name, found, " ".join((remedy or error.remedy).split()))


def gather(checks: Iterable[tuple[str, Callable[[], CheckResult | None]]]) -> list[CheckResult]:
    """Runs all checks. An error becomes a FAIL; if the server becomes unavailable, the rest is skipped."""
    results: list[CheckResult] = []
    for name, check in checks:
        try:
            result = check()
        except Unavailable as error:
            results.append(failed(name, error, "The server became unavailable during the check: run it again."))
            break
        except TailraceError as error:
            result = failed(name, error)
        if result is not None:
            results.append(result)
    return results


def is_loopback(host: str) -> bool:
    """Whether a connection to `host` stays on this machine: a Unix socket, localhost, 127.0.0.0/8 or ::1."""
    if not host or host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def hosts_of(bootstrap: str) -> list[str]:
    """The hosts of Kafka's `host:port,host:port`."""
    servers = (re.sub(r"^\w+://", "", server.strip()) for server in bootstrap.split(","))
    return [re.sub(r":\d+$", "", server) for server in servers]


def clock_difference(ahead_seconds: float) -> str:
    """Describes the difference between the database's and this machine's clock; empty if it is small."""
    if abs(ahead_seconds) < CLOCK_SECONDS:
        return ""
    return f"{human_seconds(abs(ahead_seconds))} {'ahead of' if ahead_seconds > 0 else 'behind'} this machine's"


def human_bytes(number: int) -> str:
    """Formats bytes like `1.5 GB`, in powers of 1024, as Postgres does."""
    size = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def human_seconds(seconds: float) -> str:
    """Formats a duration like `3 s`, `12 min`, `5 h`, `2 d`."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{max(0.0, seconds) / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"
