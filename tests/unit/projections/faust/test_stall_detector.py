"""A log that goes on while nothing of it arrives."""

from __future__ import annotations

import pytest

from tailrace.errors import KafkaUnavailable, ProjectionStalled
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.stall_detector import StallDetector

P0, P1 = Partition("orders", 0), Partition("orders", 1)
BOTH = {P0, P1}


def test_nothing_to_read_is_no_stall() -> None:
    arrivals = StallDetector(10)
    for now in range(0, 500, 5):
        arrivals.look(now, {P0: 7, P1: 0}, {P0: 7, P1: 0}, ())
    assert arrivals.stalled("orders", BOTH, 100) is None
    assert arrivals.longest(BOTH) == (None, 0.0)


def test_a_log_that_moves_while_nothing_arrives_is_one() -> None:
    arrivals = StallDetector(10)
    for now in range(0, 110, 5):
        arrivals.look(now, {P0: 7, P1: now}, {P0: 9 + now, P1: now + 1}, ())
    assert arrivals.stalled("orders", BOTH, 105) is None
    assert arrivals.longest(BOTH) == (P0, 105.0)
    error = arrivals.stalled("orders", BOTH, 104)
    assert isinstance(error, ProjectionStalled)
    assert error.what == "orders: orders[0] ends at offset 114, but for 105 s nothing has come from offset 7 on"
    assert arrivals.stalled("orders", {P1}, 104) is None, "of this one something comes each time"


@pytest.mark.parametrize("busy", [(), (P0,)])
def test_who_is_busy_is_watched_elsewhere(busy: tuple[Partition, ...]) -> None:
    arrivals = StallDetector(10)
    for now in (0, 5, 10):
        arrivals.look(now, {P0: 7}, {P0: 9}, busy)
    assert (arrivals.stalled("orders", {P0}, 1) is None) is bool(busy)


def test_a_process_that_was_stopped_is_not_to_blame() -> None:
    arrivals = StallDetector(10)
    arrivals.look(0, {P0: 7}, {P0: 9}, ())
    arrivals.look(4000, {P0: 7}, {P0: 9}, ())
    assert arrivals.stalled("orders", {P0}, 10) is None


def test_kafka_that_does_not_answer_is_named() -> None:
    arrivals = StallDetector(10)
    arrivals.look(0, {P0: 7}, {P0: 7}, ())
    arrivals.look(5, {P0: 7}, None, ())
    assert arrivals.stalled("orders", {P0}, 4) is None, "not answered once"
    arrivals.look(10, {P0: 7}, None, ())
    assert isinstance(arrivals.stalled("orders", {P0}, 4), KafkaUnavailable)
    assert arrivals.stalled("orders", (), 4) is None, "it reads nothing"
    arrivals.look(15, {P0: 7}, {P0: 7}, ())
    assert arrivals.stalled("orders", {P0}, 4) is None
