"""What a preflight finds: named checks, each OK, WARN or FAIL, with the remedy to copy. Pure.

A WARN is something a careful operator would change; a FAIL stops `tailrace run`, now or soon.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from tailrace.errors import TailraceError, Unavailable

CLOCK_SECONDS = 5.0
"""By so much clocks may differ without a word: synchronised ones differ by milliseconds."""


class State(Enum):
    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


class CheckResult(NamedTuple):
    """One finding. `remedy` is the SQL, command or setting that mends it; empty when all is well."""

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
    """An error as a finding, on one line; `remedy` where that of the error speaks of a running pipeline."""
    found = " ".join(f"{error.code}: {error.what} {error.why}".split())
    return fail(name, found, " ".join((remedy or error.remedy).split()))


def gather(looks: Iterable[tuple[str, Callable[[], CheckResult | None]]]) -> list[CheckResult]:
    """Takes every look; what raises is a FAIL of its own, and a server that went away ends the round."""
    checks: list[CheckResult] = []
    for name, look in looks:
        try:
            check = look()
        except Unavailable as error:
            checks.append(failed(name, error, "The server went away in the middle: check again."))
            break
        except TailraceError as error:
            check = failed(name, error)
        if check is not None:
            checks.append(check)
    return checks


def is_loopback(host: str) -> bool:
    """Whether a connection to `host` stays on this machine: a socket's folder, localhost, 127.0.0.0/8 or ::1."""
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
    """How a database's clock and this machine's differ; empty if that is no more than usual."""
    if abs(ahead_seconds) < CLOCK_SECONDS:
        return ""
    return f"{human_seconds(abs(ahead_seconds))} {'ahead of' if ahead_seconds > 0 else 'behind'} this machine's"


def human_bytes(number: int) -> str:
    """`1.5 GB`, in powers of 1024, as Postgres counts."""
    size = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def human_seconds(seconds: float) -> str:
    """`3 s`, `12 min`, `5 h`, `2 d`."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{max(0.0, seconds) / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"
