"""Rows 63-67 of the fault matrix: failing handlers, aborted records, replays, resets, gaps, pruning."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from helpers.projection import Projected
from tailrace.testkit.stack import wait_until

DAY_MS = 86_400_000


def versioned(key: str, version: int, **more: object) -> dict[str, object]:
    return {"key": key, "headers": {"entity_version": str(version)}, **more}


def test_an_event_whose_handler_raises_is_dead_lettered(projected: Projected) -> None:
    """After `max_attempts`, with all headers of a dead letter; its neighbours are applied."""
    projected.configure("max_attempts=2, within=0.05")
    ids = projected.publish(*({"key": "o-1", "value": b'{"fail": true}' if n == 3 else b"{}"} for n in range(7)))
    projected.start()
    expected = {"o-1": [each for n, each in enumerate(ids) if n != 3]}
    wait_until(lambda: projected.state() == expected, 120, what="the neighbours to be applied")
    [said] = projected.dead_letters()
    assert said["id"] == ids[3]
    assert said["tailrace.reason"] == "max_retries_exceeded"
    assert said["tailrace.attempts"] == "2"
    assert "this one fails" in said["tailrace.explanation"]
    assert said["tailrace.consumer"] == projected.name


def test_a_handler_that_hangs_is_cancelled(projected: Projected) -> None:
    more = """
@projection.on("Slow")
async def slow(event, effects):
    import asyncio
    await asyncio.sleep(600)
"""
    projected.configure("max_attempts=1, time_limit=0.3, within=0.05", more)
    [first, slow, last] = projected.publish({"key": "k"}, {"key": "k", "headers": {"type": "Slow"}}, {"key": "k"})
    projected.start()
    wait_until(lambda: projected.state() == {"k": [first, last]}, 120, what="the others to be applied")
    [said] = projected.dead_letters()
    assert (said["id"], said["tailrace.reason"]) == (slow, "processing_timeout")


def test_halt_keeps_the_event(projected: Projected) -> None:
    projected.configure('max_attempts=1, on_failure="halt", within=0.05')
    [first, bad, last] = projected.publish({"key": "k"}, {"key": "k", "value": b'{"fail": true}'}, {"key": "k"})
    worker = projected.start(wait=False)
    assert worker.ended(120) == 3, worker.log
    assert "Halted" in worker.log
    assert projected.state() == {"k": [first]}
    assert projected.dead_letters() == []
    # With a fixed handler it continues with the event that stopped it.
    projected.configure("within=0.05")
    source = (projected.folder / f"{projected.module}.py").read_text()
    (projected.folder / f"{projected.module}.py").write_text(source.replace('if event.data.get("fail")', "if False"))
    projected.start()
    wait_until(lambda: projected.state() == {"k": [first, bad, last]}, 120, what="all three")


def test_aborted_records_are_never_applied(projected: Projected) -> None:
    for number in range(20):
        projected.publish(*({"key": f"k-{n}"} for n in range(5)), commit=number % 3 != 0)
    projected.start()
    projected.caught_up()
    assert sum(map(len, projected.state().values())) == 13 * 5


def test_the_committed_offset_reaches_the_end(projected: Projected) -> None:
    """Each transaction leaves a gap in the offsets, also at the end: the lag must still become zero."""
    for _ in range(60):
        projected.publish({"key": "a"}, {"key": "b"}, {"key": "c"}, {"key": "d"})
    projected.start()
    projected.caught_up()
    consumer = Consumer({"bootstrap.servers": projected.kafka.bootstrap, "group.id": "watcher"})
    try:
        ends = {p: consumer.get_watermark_offsets(TopicPartition(projected.topic, p), timeout=20)[1] for p in range(3)}
    finally:
        consumer.close()
    ends = {partition: end for partition, end in ends.items() if end > 0}
    wait_until(lambda: projected.committed() == ends, 60, what=f"{ends}; committed {projected.committed()}")


def test_a_reset_to_the_beginning_changes_nothing(projected: Projected) -> None:
    projected.publish(*({"key": f"k-{n % 4}"} for n in range(40)))
    worker = projected.start()
    projected.caught_up()
    assert worker.stop() == 0
    before = projected.state()
    answer = projected.command("--reset", "earliest", "--yes")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert set(projected.execute("SELECT DISTINCT next_offset FROM tailrace_offsets")) <= {(0,), (None,)}
    projected.start()
    [last] = projected.publish({"key": "k-0"})
    wait_until(lambda: last in projected.state()["k-0"], 120, what="the event behind the replay")
    projected.caught_up()
    assert {key: [each for each in ids if each != last] for key, ids in projected.state().items()} == before


def test_a_reset_before_the_horizon_is_refused(projected: Projected) -> None:
    """The markers of old events are pruned: read again, they would be applied again."""
    old = int(time.time() * 1000) - 40 * DAY_MS
    projected.publish(*({"key": "k", "timestamp": old + n, "headers": {"timestamp": str(old + n)}} for n in range(5)))
    projected.publish({"key": "k"})
    worker = projected.start()
    projected.caught_up()
    assert worker.stop() == 0
    pruned = projected.command("--prune")
    assert pruned.returncode == 0, pruned.stdout + pruned.stderr
    assert len(projected.execute("SELECT 1 FROM tailrace_markers")) == 1
    before = projected.execute("SELECT topic, partition, next_offset FROM tailrace_offsets")
    answer = projected.command("--reset", "earliest", "--yes")
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "BehindHorizon" in answer.stderr
    assert projected.execute("SELECT topic, partition, next_offset FROM tailrace_offsets") == before


@pytest.mark.slow
def test_a_replay_that_is_older_than_the_markers_is_not_applied(projected: Projected) -> None:
    """Row 67: it is unknown whether it was applied, so it is dead-lettered."""
    old = int(time.time() * 1000) - 40 * DAY_MS
    [first] = projected.publish({"key": "k", "headers": {"timestamp": str(old)}})
    [recent] = projected.publish({"key": "k"})
    worker = projected.start()
    projected.caught_up()
    assert worker.stop() == 0
    assert projected.command("--prune").returncode == 0
    projected.publish({"key": "k", "id": first, "headers": {"timestamp": str(old), "tailrace.replay": "r-1"}})
    projected.publish({"key": "k", "id": recent, "headers": {"tailrace.replay": "r-1"}})
    [new] = projected.publish({"key": "k"})
    projected.start()
    wait_until(lambda: projected.state() == {"k": [first, recent, new]}, 120, what="the new event alone to be applied")
    [said] = projected.dead_letters()
    assert said["id"] == first
    assert "older than the markers" in said["tailrace.explanation"]


def test_versions_out_of_order_wait_for_each_other(projected: Projected) -> None:
    projected.configure('versions=Versions(gaps="wait", timeout=600), events=2, within=0.01')
    [three] = projected.publish(versioned("k", 3))
    [two] = projected.publish(versioned("k", 2))
    projected.start()
    wait_until(lambda: len(projected.execute("SELECT 1 FROM tailrace_waiting")) == 2, 120, what="both to wait")
    assert projected.state() == {}
    [one] = projected.publish(versioned("k", 1))
    wait_until(lambda: projected.state() == {"k": [one, two, three]}, 120, what="all, in order")
    assert projected.execute("SELECT 1 FROM tailrace_waiting") == []
    projected.publish(versioned("k", 2))
    [four] = projected.publish(versioned("k", 4))
    wait_until(lambda: projected.state() == {"k": [one, two, three, four]}, 120, what="the stale one to be passed over")


def test_an_event_behind_a_lasting_gap_is_dead_lettered(projected: Projected) -> None:
    projected.configure('versions=Versions(gaps="wait", timeout=1), within=0.01')
    [one] = projected.publish(versioned("k", 1))
    [three] = projected.publish(versioned("k", 3))
    projected.start()
    wait_until(projected.dead_letters, 120, what="the dead letter")
    [said] = projected.dead_letters()
    assert said["id"] == three
    assert "version 2" in said["tailrace.explanation"]
    assert projected.state() == {"k": [one]}
    # Redriven after the missing one, it is applied.
    [two] = projected.publish(versioned("k", 2))
    projected.publish(
        {
            "key": "k",
            "id": three,
            "headers": {"entity_version": "3", "tailrace.redriven": "0-0", "tailrace.redriven.for": projected.name},
        }
    )
    wait_until(lambda: projected.state() == {"k": [one, two, three]}, 120, what="the redriven one")


def test_a_rebuild_while_the_old_projection_runs(projected: Projected) -> None:
    """The copy of a fixed handler is filled from the beginning, and replaces the old projection as a whole.

    Events that are replayed during the rebuild are applied by the copy only.
    """
    projected.configure('on_replay="rebuild"')
    projected.publish(*({"key": f"k-{n % 4}"} for n in range(40)))
    live = projected.start()
    projected.caught_up()
    before = projected.state()
    [again, _] = projected.publish(
        {"key": "k-1", "headers": {"tailrace.replay": "r1"}}, {"key": "k-2", "headers": {"tailrace.replay": "r1"}}
    )
    [first] = projected.publish({"key": "k-1"})
    wait_until(lambda: first in projected.state()["k-1"], 120, what="what comes behind the replay")
    assert projected.state() == {**before, "k-1": [*before["k-1"], first]}
    assert again not in str(projected.state())
    assert live.log.count("replay skipped") == 1, live.log
    projected.execute("UPDATE history SET ids = ARRAY['wrong'] || ids")
    rebuilder = projected.start("--rebuild", wait=False)
    for _ in range(10):
        projected.publish(*({"key": f"k-{n % 4}"} for n in range(10)))
    assert rebuilder.ended(180) == 0, rebuilder.log
    assert '"rebuilt"' in rebuilder.log
    projected.publish(*({"key": f"k-{n % 4}"} for n in range(10)))
    projected.caught_up()
    assert live.running, live.log
    schemas = projected.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE %s", f"{projected.name}%")
    assert schemas == [(projected.name,)]


@pytest.mark.slow
def test_a_killed_rebuild_continues(projected: Projected) -> None:
    projected.configure("events=5, within=0.01")
    projected.publish(*({"key": f"k-{n % 4}"} for n in range(60)))
    worker = projected.start()
    projected.caught_up()
    assert worker.stop() == 0
    # After the last event, before its transaction marker.
    assert projected.command("--reset", "latest", "--yes").returncode == 0
    before = projected.state()
    killed = projected.start("--rebuild", kill="projection-committed:3", wait=False)
    assert killed.ended(120) == -9, killed.log
    assert projected.state() == before
    rebuilder = projected.start("--rebuild", wait=False)
    assert rebuilder.ended(180) == 0, rebuilder.log
    assert projected.state() == before
    projected.start()
    projected.publish({"key": "k-0"})
    projected.caught_up()


def test_a_dead_letter_is_redriven_by_the_command(projected: Projected) -> None:
    """Dead-lettered by a wrong handler, redriven after the fix, and applied once."""
    projected.configure("max_attempts=1, within=0.05")
    [first, bad, last] = projected.publish({"key": "k"}, {"key": "k", "value": b'{"fail": true}'}, {"key": "k"})
    worker = projected.start()
    wait_until(lambda: projected.state() == {"k": [first, last]}, 120, what="the others")
    assert worker.stop() == 0
    source = projected.folder / f"{projected.module}.py"
    source.write_text(source.read_text().replace('if event.data.get("fail")', "if False"))
    projected.start()
    redrive = [sys.executable, "-m", "tailrace", "dlq", "redrive", "--letters", projected.letters]
    asked = [*redrive, "--bootstrap", projected.kafka.bootstrap, "--all-open", "--yes"]
    for _ in range(2):
        done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: projected.state() == {"k": [first, last, bad]}, 120, what="the one that was put back")
    assert len(projected.published()) == 4, "published again once"
