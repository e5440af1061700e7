"""Commands that get one stop signal, or several at once."""

from __future__ import annotations

import sys
from itertools import count
from types import FrameType
from typing import Any

from tailrace.cli.stop_signals import Stop, stoppable


def interrupted(stop: Stop, moment: int) -> bool:
    """Delivers a second signal before the line of this number runs; returns False if there are fewer lines."""
    lines = 0

    def trace(_frame: FrameType, event: str, _given: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == moment:
                stop.ask()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        stop.ask()
    finally:
        sys.settrace(before)
    return lines >= moment


def test_a_second_signal_at_any_moment_of_the_first() -> None:
    for moment in count(1):
        with stoppable() as stop:
            assert not stop.wanted()
            came = interrupted(stop, moment)
            assert stop.wanted()
        if not came:
            break
    assert moment > 3
