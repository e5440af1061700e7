"""Checks of a second instance of a running pipeline, started by accident or as a standby, for both databases."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from helpers.command import Output, Tailrace
from helpers.service import Connector, Service
from tailrace.testkit.stack import wait_until


def healthy(service: Service) -> Connector:
    """Starts an instance and waits until it has published something."""
    connector = service.start()
    service.writer().transaction(rollback=False)
    assert service.caught_up().ok
    return connector


def copy_of(service: Service, name: str, **source: Any) -> Connector:
    """Starts another instance of the pipeline, from a copy of its settings with another source."""
    file = service.folder / f"{name}.yaml"
    file.write_text(json.dumps({**service.settings, "source": {**service.settings["source"], **source}}))
    return Connector(file, service.folder / f"{name}.log")


def publishes(service: Service) -> None:
    service.writers[0].transaction(rollback=False)
    verdict = service.caught_up()
    assert verdict.ok, verdict


def undisturbed(service: Service, first: Connector) -> None:
    """Checks that the first instance publishes and was never interrupted."""
    publishes(service)
    assert first.running, first.log
    assert first.log.count('"running"') == 1, first.log
    assert '"waiting"' not in first.log, first.log


def shown(service: Service, tailrace: Tailrace, wanted: Callable[[Output], bool]) -> Output:
    """Returns the status once it is as wanted; the pipeline must be RUNNING all the time."""
    last: Output = {}

    def asked() -> bool:
        last.update(tailrace("status", service.file))
        return wanted(last)

    wait_until(asked, 60, what=f"the status, but it is {last}")
    return last


def is_standby(second: Connector) -> Callable[[Output], bool]:
    """Whether the status shows this instance as the standby."""
    return lambda status: (status["standby"] or {}).get("pid") == second.process.pid


def broken_seconds_are_harmless(
    service: Service, tailrace: Tailrace, ends: dict[str, tuple[str, dict[str, Any]]]
) -> None:
    """`ends`: the expected error of each instance, by name. None may affect the first instance."""
    first = healthy(service)
    for name, (error, source) in ends.items():
        second = copy_of(service, name, **source)
        try:
            second.says(f'"{error}"')
            undisturbed(service, first)
            status = shown(service, tailrace, is_standby(second))
            assert status["announced"]["pid"] == first.process.pid, status
            assert status["error"] is None, status
            assert status["standby"]["error"]["code"] == error, status
        finally:
            if second.running:
                second.kill()
    undisturbed(service, first)


def take_turns(service: Service, tailrace: Tailrace) -> None:
    """One instance publishes, the other waits. When the first ends, in any way, the other takes over."""
    first = healthy(service)
    for end in (Connector.stop, Connector.kill):
        second = service.start(wait=False)
        second.says('"PipelineBusy"')
        assert f"process {first.process.pid} on " in second.log, second.log
        status = shown(service, tailrace, is_standby(second))
        assert status["announced"]["pid"] == first.process.pid, status
        assert status["standby"]["state"] == "WAITING", status
        publishes(service)
        assert first.running, first.log
        assert '"Fenced"' not in first.log
        end(first)
        second.says('"running"', 30)
        publishes(service)
        first = second
    shown(
        service, tailrace, lambda status: status["standby"] is None and status["announced"]["pid"] == first.process.pid
    )
