"""The restart policy: delays, and which errors may recover."""

from __future__ import annotations

import pytest

from tailrace import errors
from tailrace.errors import TailraceError
from tailrace.manager.restarts import MAY_RECOVER, STAYS_FAILED, RestartPolicy, may_recover


def all_errors(base: type[TailraceError] = TailraceError) -> set[str]:
    found = {base.__name__}
    for each in base.__subclasses__():
        if each.__module__ == errors.__name__:
            found |= all_errors(each)
    return found


def test_every_error_is_decided_once() -> None:
    assert set() == MAY_RECOVER & STAYS_FAILED
    assert all_errors() == MAY_RECOVER | STAYS_FAILED


def test_errors_that_need_a_decision_about_data_are_never_restarted() -> None:
    for code in ("SlotLost", "SlotMissing", "PositionForgotten", "OffsetRecordCorrupt", "ConfigError", "Halted"):
        assert not may_recover(code)


def test_errors_that_are_fixed_elsewhere_are_restarted() -> None:
    for code in ("PipelineCrashed", "PipelineStalled", "TopicMissing", "AccessRefused", "CertificateInvalid", "Fenced"):
        assert may_recover(code)


def test_the_delays_are_those_of_strimzi() -> None:
    policy = RestartPolicy()
    assert [policy.delay(n) / 60 for n in range(10)] == [0, 2, 6, 12, 20, 30, 42, 56, 60, 60]


def test_the_unit_and_the_maximum_can_be_changed() -> None:
    policy = RestartPolicy(minute=0.5, maximum=10)
    assert [policy.delay(n) for n in range(5)] == [0, 1, 3, 5, 5]


@pytest.mark.parametrize(("seconds", "counted"), [(0.0, 3), (599.0, 3), (600.0, 0), (90_000.0, 0)])
def test_a_long_run_forgets_earlier_restarts(seconds: float, counted: int) -> None:
    assert RestartPolicy().counted(3, seconds) == counted
