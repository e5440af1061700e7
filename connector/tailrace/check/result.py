"""Results of checks: OK, NOTE, WARN or FAIL, with a remedy to copy.

NOTE is information. WARN means that it works, but a careful operator would change it. FAIL means that `tailrace run`
stops, now or soon.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Literal, NamedTuple

from tailrace.errors import TailraceError, Unavailable

CLOCK_SECONDS = 5.0
"""Smaller differences of clocks are not reported; synchronised clocks differ by milliseconds."""


class State(Enum):
    OK = "OK"
    NOTE = "NOTE"
    WARN = "WARN"
    FAIL = "FAIL"


class Fix(NamedTuple):
    """What a person runs or writes to fix a finding."""

    kind: Kind
    text: str

    @classmethod
    def of(cls, remedy: str) -> Fix:
        """A remedy whose kind is shown by its first word."""
        return cls(next((kind for kind, begins in _KINDS.items() if begins.match(remedy)), "text"), remedy)


Kind = Literal["sql", "shell", "yaml", "mongosh", "text"]
"""What a fix is: SQL for psql, a command for a shell, settings to merge into a file, a command for mongosh, or advice.

`yaml` begins with a comment that names the file.
"""
_KINDS: dict[Kind, re.Pattern[str]] = {
    "sql": re.compile(r"(ALTER|CREATE|DROP|GRANT|REINDEX|SELECT|SET|VACUUM) (?!.*…)"),
    "shell": re.compile(r"(kafka-\w+|psql|tailrace) (?!.*…)"),
    "mongosh": re.compile(r"db\.(?!.*…)"),
}


class CheckResult(NamedTuple):
    """The result of one check. `remedy` is the SQL, command or setting that fixes it; empty if OK.

    `name` is shown by `tailrace check`; `code` is the stable name of a finding, one of `codes.CODES`.
    """

    name: str
    state: State
    found: str
    remedy: str = ""
    fixes: tuple[Fix, ...] = ()

    @property
    def code(self) -> str:
        """The check's name without spaces. Checks of single topics are named by their topic, and share one code."""
        name = "topic" if self.name.startswith("topic ") else self.name
        return name.replace(" ", "-").replace("_", "-")

    @property
    def all_fixes(self) -> tuple[Fix, ...]:
        """Its fixes; the remedy if they are not given by themselves."""
        return self.fixes or ((Fix.of(self.remedy),) if self.remedy else ())


def ok(name: str, found: str) -> CheckResult:
    return CheckResult(name, State.OK, found)


def note(name: str, found: str, remedy: str = "") -> CheckResult:
    return CheckResult(name, State.NOTE, found, remedy)


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
