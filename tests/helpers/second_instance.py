"""A second instance of a running pipeline, started by accident or in reserve: what both must do, on either database."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from helpers.command import Output, Tailrace
from helpers.service import Connector, Service
from tailrace.testkit.stack import wait_until


def healthy(service: Service) -> Connector:
    """An instance that has published something."""
    connector = service.start()
    service.writer().transaction(rollback=False)
    assert service.caught_up().ok
    return connector


def copy_of(service: Service, name: str, **source: Any) -> Connector:
    """Another instance, from a copy of the file with another source: the same pipeline."""
    file = service.folder / f"{name}.yaml"
    file.write_text(json.dumps({**service.settings, "source": {**service.settings["source"], **source}}))
    return Connector(file, service.folder / f"{name}.log")


def publishes(service: Service) -> None:
    service.writers[0].transaction(rollback=False)
    verdict = service.caught_up()
    assert verdict.ok, verdict


def undisturbed(service: Service, first: Connector) -> None:
    """The first instance publishes, and never had a reason to stop doing so."""
    publishes(service)
    assert first.running, first.log
    assert first.log.count('"running"') == 1, first.log
    assert '"waiting"' not in first.log, first.log


def shown(service: Service, tailrace: Tailrace, wanted: Callable[[Output], bool]) -> Output:
    """What `status` says once it is as wanted; the pipeline must be RUNNING all the time."""
    last: Output = {}

    def asked() -> bool:
        last.update(tailrace("status", service.file))
        return wanted(last)

    wait_until(asked, 60, what=f"the status, but it is {last}")
    return last


def beside(second: Connector) -> Callable[[Output], bool]:
    """Whether `status` mentions this instance beside the one that runs."""
    return lambda told: (told["standby"] or {}).get("pid") == second.process.pid


def broken_seconds_are_harmless(
    service: Service, tailrace: Tailrace, ends: dict[str, tuple[str, dict[str, Any]]]
) -> None:
    """`ends`: by name, the error that each of these instances meets with its source. None may touch the first one."""
    first = healthy(service)
    for name, (error, source) in ends.items():
        second = copy_of(service, name, **source)
        try:
            second.says(f'"{error}"')
            undisturbed(service, first)
            told = shown(service, tailrace, beside(second))
            assert told["announced"]["pid"] == first.process.pid, told
            assert told["error"] is None, told
            assert told["standby"]["error"]["code"] == error, told
        finally:
            if second.running:
                second.kill()
    undisturbed(service, first)


def take_turns(service: Service, tailrace: Tailrace) -> None:
    """One publishes, the other waits; when the first ends, whichever way, the other goes on."""
    first = healthy(service)
    for end in (Connector.stop, Connector.kill):
        second = service.start(wait=False)
        second.says('"PipelineBusy"')
        assert f"process {first.process.pid} on " in second.log, second.log
        told = shown(service, tailrace, beside(second))
        assert told["announced"]["pid"] == first.process.pid, told
        assert told["standby"]["state"] == "WAITING", told
        publishes(service)
        assert first.running, first.log
        assert '"Fenced"' not in first.log
        end(first)
        second.says('"running"', 30)
        publishes(service)
        first = second
    shown(service, tailrace, lambda told: told["standby"] is None and told["announced"]["pid"] == first.process.pid)
