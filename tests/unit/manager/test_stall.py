"""When a pipeline is stalled, and when it only waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.errors import PipelineStalled
from tailrace.manager.stall import FIRST_READ_SECONDS, RELEASE_FACTOR, Sighting, StallDetector
from tailrace.pipeline.loop import IDLE_STORE_SECONDS
from tailrace.pipeline.recorder import PROCESSING, READING, RELEASING
from tailrace.positions.postgres import LogIdentity, LsnPosition, TableRead
from tailrace.worker.metrics import Liveness

POSITION = LsnPosition(LogIdentity("1", 1, "shop", "s", "public.outbox", "x"), 1, 1)
FIRST_READ = replace(POSITION, table_read=TableRead("1:1:"))
BOUND = 10.0


def watch(seconds: int, alive: Liveness, *, beats: str = "", **seen: object) -> PipelineStalled | None:
    """Looks once a second; `beats` names the threads that give signs of life: r, p."""
    detector = StallDetector(BOUND, max_step=2)
    for now in range(seconds + 1):
        at = replace(
            alive,
            reader_at=float(now) if "r" in beats else 1.0,
            publisher_at=float(now) if "p" in beats else 1.0,
        )
        given = {"position": POSITION, "behind": False, **seen}
        if error := detector.look(float(now), Sighting(at, **given)):  # type: ignore[arg-type]
            return error
    return None


RUNNING = Liveness(running=True, phase=READING)
BUSY = replace(RUNNING, publisher_busy=True)


def test_a_blocked_reading_thread() -> None:
    error = watch(20, RUNNING, beats="p")
    assert error is not None
    assert "reading thread has not moved for" in error.what
    assert "database" in error.why
    assert error.remedy
    assert error.exit_code == 3


def test_the_cause_names_the_step() -> None:
    error = watch(20, replace(RUNNING, phase=PROCESSING))
    assert error is not None
    assert "processes events" in error.why


def test_a_blocked_publishing_thread() -> None:
    error = watch(20, BUSY, beats="r")
    assert error is not None
    assert "publishing thread" in error.what


def test_nothing_arrives_while_the_log_moves() -> None:
    error = watch(20, RUNNING, beats="r", behind=True)
    assert error is not None
    assert "stored no position" in error.what


@pytest.mark.parametrize("bound", [1.0, IDLE_STORE_SECONDS])
def test_a_bound_below_the_time_between_stored_positions(bound: float) -> None:
    """Without events a position is stored every IDLE_STORE_SECONDS, however short the bound is."""
    detector = StallDetector(bound, max_step=2)
    position = POSITION
    for now in range(60):
        if now % (IDLE_STORE_SECONDS + 2) == 0:
            position = replace(POSITION, lsn=now)
        seen = Sighting(replace(RUNNING, reader_at=float(now)), position, behind=True)
        assert detector.look(float(now), seen) is None


@pytest.mark.parametrize(
    ("alive", "beats", "seen"),
    [
        (RUNNING, "r", {}),  # idle: the log has nothing more
        (RUNNING, "r", {"behind": None}),  # the database does not answer the probe
        (RUNNING, "r", {"behind": True, "busy": True}),  # the database works for the reader
        (BUSY, "rp", {"behind": True}),  # Kafka is slow
        (replace(RUNNING, running=False), "", {"behind": True}),  # RETRYING, or starting
        (replace(RUNNING, phase=RELEASING), "", {}),  # it reads a long topic
        (RUNNING, "", {"behind": True, "position": FIRST_READ}),  # the database sorts a large table
    ],
)
def test_no_stall(alive: Liveness, beats: str, seen: dict[str, object]) -> None:
    assert watch(50, alive, beats=beats, **seen) is None


def test_even_a_release_ends() -> None:
    assert watch(int(BOUND * RELEASE_FACTOR) + 5, replace(RUNNING, phase=RELEASING)) is not None


def test_even_a_first_read_ends() -> None:
    assert watch(int(FIRST_READ_SECONDS) + 5, RUNNING, position=FIRST_READ) is not None


def test_progress_of_any_size_counts() -> None:
    detector = StallDetector(BOUND, max_step=2)
    for now in range(60):
        position = POSITION if now % 20 < 9 else replace(POSITION, lsn=now)
        seen = Sighting(replace(RUNNING, reader_at=float(now)), position, behind=True)
        assert detector.look(float(now), seen) is None


def test_time_in_which_the_process_was_suspended_does_not_count() -> None:
    detector = StallDetector(BOUND, max_step=2)
    for now in (0.0, 1.0, 500.0, 501.0):
        assert detector.look(now, Sighting(replace(RUNNING, reader_at=1.0), POSITION, behind=True)) is None
