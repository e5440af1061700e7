"""Waits that end early when a server answers again; otherwise they would take an hour."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tailrace.worker.outage import ServerOutage, ServerProbe

HOUR = 3600.0
SHORT = 0.05


def probe_with(*answers: bool) -> tuple[ServerProbe, Callable[[], int]]:
    """Returns a probe with these answers, the last one repeated, and a function that counts its calls."""
    asked: list[bool] = []

    def next_answer() -> bool:
        asked.append(answers[min(len(asked), len(answers) - 1)])
        return asked[-1]

    return ServerProbe("kafka", next_answer), lambda: len(asked)


def test_a_server_that_comes_back_ends_the_wait() -> None:
    probe, asked = probe_with(False, False, True)
    assert ServerOutage(every=0.01).wait(HOUR, threading.Event(), probe)
    assert asked() == 3


def test_a_server_that_always_answered_does_not_end_the_wait() -> None:
    probe, asked = probe_with(True)
    assert not ServerOutage(every=0.01).wait(SHORT, threading.Event(), probe)
    assert asked() > 0


def test_an_unavailable_server_is_remembered_across_waits_until_the_outage_ends() -> None:
    silent, _ = probe_with(False)
    speaking, _ = probe_with(True)
    outage = ServerOutage(every=0.01)
    assert not outage.wait(SHORT, threading.Event(), silent)
    assert not outage.wait(SHORT, threading.Event(), speaking._replace(server="postgres"))
    assert outage.wait(HOUR, threading.Event(), speaking), "it came back during an attempt"
    assert not outage.wait(SHORT, threading.Event(), silent)
    outage.end()
    assert not outage.wait(SHORT, threading.Event(), speaking)


def test_a_stop_does_not_wait_for_a_probe_that_hangs() -> None:
    stopped, hangs, asked = threading.Event(), threading.Event(), threading.Event()

    def answers() -> bool:
        asked.set()
        return hangs.wait(HOUR)

    threading.Thread(target=lambda: (asked.wait(60), stopped.set()), daemon=True).start()
    assert not ServerOutage().wait(HOUR, stopped, ServerProbe("kafka", answers))
    hangs.set()


def test_without_a_probe_the_wait_takes_its_whole_time() -> None:
    stopped = threading.Event()
    stopped.set()
    assert not ServerOutage().wait(HOUR, stopped, None)
