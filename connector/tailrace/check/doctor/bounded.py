"""Runs a probe with a time limit; what does not answer becomes a finding, and the other probes still run."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tailrace.check.findings import advice, problem, warning
from tailrace.check.result import CheckResult
from tailrace.errors import TailraceError

PROBE_SECONDS = 60.0
"""Each request of a probe has a shorter timeout; this bounds their sum."""


def bounded(name: str, probe: Callable[[], list[CheckResult]], seconds: float = PROBE_SECONDS) -> list[CheckResult]:
    """Returns the results of `probe`, or a finding that names it: it failed, or did not end in time.

    A probe that does not end goes on in its thread, which does not keep the process alive. A bug is raised.
    """
    results: list[CheckResult] = []
    bugs: list[BaseException] = []

    def run() -> None:
        try:
            results.extend(probe())
        except TailraceError as error:
            found = " ".join(f"{name} could not be checked: {error.code}: {error.what} {error.why}".split())
            results.append(warning("not-checked", found, *([advice(error.remedy)] if error.remedy else [])))
        except BaseException as error:  # noqa: BLE001  raised in the caller's thread
            bugs.append(error)

    thread = threading.Thread(target=run, name=f"doctor: {name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if bugs:
        raise bugs[0]
    if thread.is_alive():
        again = advice("Run the check again. If the server is overloaded, check it by hand.")
        return [problem("not-checked", f"checking {name} did not end within {seconds:g} s", again)]
    return results
