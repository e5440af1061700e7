"""A projection app on a real Kafka: what it reads, from which offset, what it commits, and how it ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer, TopicPartition

from helpers.projection_app import PLAIN, AppRun
from tailrace.testkit.stack import KafkaBroker


@pytest.fixture
def run(kafka: KafkaBroker, tmp_path: Path) -> Iterator[AppRun]:
    made = AppRun(kafka, tmp_path)
    yield made
    made.close()


def test_aborted_transactions_are_never_delivered(run: AppRun) -> None:
    run.transaction("one")
    run.transaction("never", "never", abort=True)
    run.transaction("two")
    run.start()
    run.until(lambda: "two" in run.applied, "the last event")
    assert run.applied == ["one", "two"]
    assert run.stop() == 0
    assert json.loads(run.log.splitlines()[-1])["event"] == "stopped"


def test_a_plain_faust_app_delivers_what_was_aborted(run: AppRun) -> None:
    """The kit prevents this; the test also shows that the one above can fail."""
    run.transaction("one")
    run.transaction("never", "never", abort=True)
    run.transaction("two")
    run.write(source=PLAIN)
    run.start("--without-web", program="faust")
    run.until(lambda: "two" in run.applied, "the last event")
    assert "never" in run.applied


def test_the_committed_offset_passes_transaction_markers(run: AppRun) -> None:
    producer = Producer({"bootstrap.servers": run.kafka.bootstrap, "transactional.id": run.name, "log_level": 0})
    producer.init_transactions(30)
    run.transact(producer, "first")
    run.start()
    run.until(lambda: run.applied, "the first event")
    for number in range(300):
        run.transact(producer, f"{number}", abort=number % 10 == 9)
    run.until(lambda: len(run.applied) == 271, "the last event")
    run.until(lambda: run.committed() == run.end(), "the end as committed offset")
    assert run.stop() == 0
    assert run.committed() == run.end()


def test_the_committed_offset_never_runs_ahead_of_the_store(run: AppRun) -> None:
    run.transaction(*map(str, range(5)))
    run.write(
        more="""
import asyncio

async def then(event):
    if event.offset == 2:
        record("waits", 2)
        await asyncio.Event().wait()
"""
    )
    run.start()
    run.until(lambda: ("waits", 2) in run.calls, "the third event")
    run.until(lambda: run.committed() == 2, "two events as committed")
    assert run.stop() == 0
    assert run.committed() == 2


def test_a_restart_reads_from_the_stored_offset_not_from_kafka_s(run: AppRun) -> None:
    run.transaction(*map(str, range(5)))
    run.start()
    run.until(lambda: run.committed() == run.end(), "the end as committed offset")
    assert run.stop() == 0
    (run.folder / "applied").write_text("0 0 0\n0 1 1\n")  # the store was restored from a backup
    run.start()
    run.until(lambda: len(run.applied) >= 5, "the events after the stored offset")
    assert run.applied == ["0", "1", "2", "3", "4"]
    assert ("assigned", {f"{run.name}[0]": 2}) in run.calls


def test_a_new_projection_may_start_with_the_latest(run: AppRun) -> None:
    run.transaction("old")
    run.write(options=', start="latest"')
    run.start()
    run.until(lambda: run.calls, "the assignment")
    assert run.calls == [("assigned", {f"{run.name}[0]": run.end()})]
    run.transaction("new")
    run.until(lambda: run.applied, "the new event")
    assert run.applied == ["new"]


@pytest.mark.parametrize("program", ["tailrace", "faust"])
def test_events_that_retention_deleted_are_reported(run: AppRun, program: str) -> None:
    run.transaction(*map(str, range(5)))
    (run.folder / "applied").write_text("0 1 1\n")
    run.admin.delete_records([TopicPartition(run.name, 0, 4)])[TopicPartition(run.name, 0)].result(30)
    run.start(program=program)
    assert run.ended() == 3
    assert "EventsLost" in run.log
    assert run.log.count("why:    Retention deleted 2 offsets") == 1
    assert "--reset earliest" in run.log
    assert run.applied == ["1"]


@pytest.mark.parametrize("program", ["tailrace", "faust"])
def test_a_re_created_topic_is_reported(run: AppRun, program: str) -> None:
    run.transaction("other")
    (run.folder / "applied").write_text("0 1000 x\n")
    run.start(program=program)
    assert run.ended() == 3
    assert run.log.count("TopicReplaced: ") == 1
    assert run.applied == ["x"]


def test_events_that_retention_deletes_while_held_are_reported(run: AppRun) -> None:
    run.write(
        settings=", consumer_max_fetch_size=1000, kafka_settings={'queued.min.messages': 1}",
        more="""
from tailrace.projections.reader import consumer_thread
consumer_thread.KEPT_RECORDS = 5

async def then(event):
    if event.offset == 0:
        app.reader.hold(Partition(TOPIC, 0), "test")
        Path("held").touch()

@app.timer(0.2)
async def release():
    if Path("go").exists():
        app.reader.release(Partition(TOPIC, 0), "test")
""",
    )
    run.start()
    producer = Producer({"bootstrap.servers": run.kafka.bootstrap, "log_level": 0})
    producer.produce(run.name, b"first", partition=0)
    producer.flush(30)
    run.until((run.folder / "held").exists, "the hold")
    for _ in range(50):
        producer.produce(run.name, bytes(900).replace(b"\0", b"-"), partition=0)
        producer.flush(30)
    run.admin.delete_records([TopicPartition(run.name, 0, 50)])[TopicPartition(run.name, 0)].result(30)
    (run.folder / "go").touch()
    assert run.ended() == 3
    assert '"error": "EventsLost"' in run.log


@pytest.mark.parametrize("kept", [20, 10_000], ids=["paused", "kept"])
def test_holding_a_partition_loses_nothing(kafka: KafkaBroker, tmp_path: Path, kept: int) -> None:
    run = AppRun(kafka, tmp_path, partitions=2)
    try:
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        for number in range(3000):
            producer.produce(run.name, f"{number}", partition=number % 2)
        producer.flush(30)
        run.write(
            more=f"""
import asyncio
from tailrace.projections.reader import consumer_thread

consumer_thread.RECORDS_AT_ONCE, consumer_thread.KEPT_RECORDS = 100, {kept}

async def then(event):
    if event.offset % 70 == 0:
        partition = event.partition
        app.reader.hold(partition, "test")
        asyncio.get_running_loop().call_later(0.01, app.reader.release, partition, "test")
""",
        )
        run.start()
        run.until(lambda: len(run.applied) >= 3000, "the last event")
        assert run.stop() == 0
        assert [value for value in run.applied if int(value) % 2 == 0] == [str(n) for n in range(0, 3000, 2)]
        assert [value for value in run.applied if int(value) % 2 == 1] == [str(n) for n in range(1, 3000, 2)]
    finally:
        run.close()


def test_other_agents_of_the_app_work_as_in_faust(run: AppRun) -> None:
    other = f"{run.name}-other"
    run.kafka.create_topic(other)
    run.write(
        more=f"""
@app.agent(app.topic({other!r}))
async def others(stream):
    async for event in stream.events():
        with Path("others").open("a") as file:
            file.write(event.message.value.decode() + "\\n")
"""
    )
    producer = Producer({"bootstrap.servers": run.kafka.bootstrap, "log_level": 0})
    for value in ("a", "b", "c"):
        producer.produce(other, value, partition=0)
        producer.produce(run.name, value, partition=0)
    producer.flush(30)
    run.start()
    run.until(lambda: run.committed(other) == 3, "the other topic's offset")
    run.until(lambda: len(run.applied) == 3, "the projection's events")
    assert run.stop() == 0
    run.start()
    run.transaction("d")
    run.until(lambda: "d" in run.applied, "the new event")
    assert (run.folder / "others").read_text().split() == ["a", "b", "c"]


def test_partitions_that_move_between_workers_lose_and_repeat_nothing(kafka: KafkaBroker, tmp_path: Path) -> None:
    run = AppRun(kafka, tmp_path, partitions=4)
    try:
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        run.start()
        run.until(lambda: run.calls, "the first assignment")
        second = None
        for number in range(2000):
            producer.produce(run.name, f"{number}", partition=number % 4)
            if number % 100 == 0:
                producer.flush(30)
            if number == 700:
                second = run.start()
            if number == 1400 and second is not None:
                run.until(lambda: len(run.calls[-1][1]) == 2 and len(run.applied) > 700, "a shared assignment")
                second.send_signal(signal.SIGTERM)
        producer.flush(30)
        assert second is not None
        assert second.wait(60) == 0, run.log
        run.processes.remove(second)
        run.until(lambda: len(run.applied) >= 2000, "the last event")
        assert sorted(run.applied, key=int) == [str(number) for number in range(2000)]
    finally:
        run.close()


REFUSED = {
    "exactly_once": ({"PROCESSING_GUARANTEE": "exactly_once"}, {}),
    "web server": ({}, {"settings": ", web_enabled=True"}),
    "value_serializer is pickle": ({}, {"settings": ', value_serializer="json|pickle"'}),
    "kafka://": ({}, {"broker": "confluent://localhost:1"}),
}


@pytest.mark.parametrize("expected", REFUSED)
def test_settings_that_break_the_guarantees_are_refused(run: AppRun, expected: str) -> None:
    environ, parts = REFUSED[expected]
    run.transaction("one")
    run.write(**parts)
    run.start(PYTHONWARNINGS="ignore", **environ)
    assert run.ended() == 2, run.log
    assert '"error": "ConfigError"' in run.log
    assert expected in run.log
    assert not run.applied


def test_faust_s_own_command_starts_no_web_server_and_leaves_no_folder(run: AppRun) -> None:
    run.transaction("one")
    process = run.start(program="faust")
    run.until(lambda: run.applied, "the first event")
    listening = [c.laddr for c in psutil.Process(process.pid).net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert listening == []
    assert run.stop() == 0
    assert {path.name for path in run.folder.iterdir()} <= {"app_module.py", "log", "applied", "calls", "__pycache__"}


def test_the_app_waits_for_kafka_at_the_start(run: AppRun) -> None:
    run.write(broker="kafka://127.0.0.1:1")
    run.start()
    run.until(lambda: '"waiting"' in run.log, "the log line")
    assert run.stop() == 0


@pytest.mark.parametrize(("how", "code"), [("app.fail(Halted('enough'))", 3), ("os.kill(os.getpid(), 15)", 0)])
def test_a_worker_exits_in_time_even_if_a_store_hangs(run: AppRun, how: str, code: int) -> None:
    run.transaction("one")
    run.write(
        more=f"""
import asyncio, os
from tailrace.errors import Halted

async def then(event):
    app.coordinator.revoked = never
    {how}

async def never():
    await asyncio.Event().wait()
"""
    )
    run.start()
    assert run.ended() == code, run.log
    assert ("Halted: enough" in run.log) == (code == 3)


def test_a_bug_in_the_app_ends_the_worker(run: AppRun) -> None:
    run.transaction("one")
    run.write(
        more="""
async def then(event):
    app.fail(ZeroDivisionError("a bug"))
"""
    )
    run.start()
    assert run.ended() == 70
    assert "ZeroDivisionError: a bug" in run.log


def test_after_an_error_nothing_more_is_delivered(run: AppRun) -> None:
    """What follows would leave a gap: its offset would be stored."""
    run.transaction(*map(str, range(200)))
    run.write(
        more="""
from tailrace.projections.reader import consumer_thread

consumer_thread.RECORDS_AT_ONCE, consumer_thread.DELIVERIES = 1, 100
receive = projection.receive

def fails(partition, messages):
    if messages[0].offset() == 5 and not Path("failed").exists():
        Path("failed").touch()
        raise ZeroDivisionError("a bug")
    receive(partition, messages)

projection.receive = fails
"""
    )
    run.start()
    assert run.ended() == 70
    assert run.applied == [str(number) for number in range(len(run.applied))]
    assert len(run.applied) <= 5
    run.start()
    run.until(lambda: len(run.applied) >= 200, "the last event")
    assert run.applied == [str(number) for number in range(200)]
