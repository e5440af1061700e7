"""A projection app on real Kafka: what it reads, where it reads on, what Kafka is told, and how it ends.

The apps run as processes, as a user runs them. Their coordinator is a file: each record that is taken becomes a line of
`seen`, which is at once the stored position.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from helpers import warm_servers as warm
from tailrace.testkit.stack import KafkaBroker, StackError, wait_until

GUIDE = """
import json
from pathlib import Path

from tailrace.projections.faust.app import projection_app
from tailrace.projections.faust.offset_coordinator import StoredOffset
from tailrace.projections.core.store import Partition

class FileCoordinator:
    def __init__(self, *topics, start="earliest"):
        self.topics, self.start, self.next, self.calls = topics, start, {}, []
        self.seen = Path("seen").open("a", buffering=1)

    def owns(self, topic):
        return topic in self.topics

    async def positions(self, partitions):
        stored = {}
        for line in Path("seen").read_text().splitlines():
            number, offset, _ = line.split(" ", 2)
            stored[int(number)] = int(offset) + 1
        return {partition: [StoredOffset(stored.get(partition.number), self.start)] for partition in partitions}

    async def assigned(self, starts):
        self.next = {partition: offset for partition, [offset] in starts.items()}
        self.say("assigned", {str(partition): offset for partition, offset in self.next.items()})

    async def revoked(self):
        consumer = app.consumer
        self.say("revoked", [len(consumer._acked), len(consumer._acked_index), len(consumer._gap)])

    def progress(self):
        return self.next

    def say(self, what, value):
        with Path("told").open("a") as told:
            told.write(json.dumps([what, value]) + "\\n")

    def take(self, message):
        assert self.next, "a record came before its assignment was told"
        self.seen.write(f"{message.partition} {message.offset} {(message.value or b'').decode()}\\n")
        self.next[Partition(message.topic, message.partition)] = message.offset + 1
"""

APP = (
    GUIDE
    + """
app = projection_app(NAME, broker=BROKER, broker_commit_interval=0.2{settings})
coordinator = app.coordinator = FileCoordinator(TOPIC{guided})

@app.agent(app.topic(TOPIC){agent})
async def read(stream):
    async for event in stream.noack().events():
        if app.reader.is_current(event.message):
            coordinator.take(event.message)
            await then(event.message)

async def then(message):
    pass
{more}
"""
)

PLAIN = """
import faust
from pathlib import Path

app = faust.App(NAME, broker=BROKER, value_serializer="raw", topic_disable_leader=True, web_enabled=False)
seen = Path("seen").open("a", buffering=1)

@app.agent(app.topic(TOPIC))
async def read(stream):
    async for event in stream.events():
        seen.write(f"{event.message.partition} {event.message.offset} {event.message.value.decode()}\\n")
"""


class Play:
    """A topic, an app that reads it, and a folder it runs in."""

    def __init__(self, kafka: KafkaBroker, folder: Path, partitions: int = 1) -> None:
        self.kafka = kafka
        self.folder = folder
        self.name = f"play-{uuid.uuid4().hex[:8]}"
        self.processes: list[warm.Process] = []
        self.admin = kafka.admin()
        # It never joins the group. (The admin client's own way to ask crashes before the group's coordinator is there.)
        self.looker = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": self.name, "log_level": 0})
        kafka.create_topic(self.name, partitions)
        self.write()

    def write(
        self,
        *,
        source: str = APP,
        settings: str = "",
        guided: str = "",
        agent: str = "",
        more: str = "",
        broker: str = "",
    ) -> None:
        """Writes the app, which `start` runs."""
        address = broker or f"kafka://{self.kafka.bootstrap}"
        names = f"NAME = TOPIC = {self.name!r}\nBROKER = {address!r}\n"
        parts = {"{settings}": settings, "{guided}": guided, "{agent}": agent, "{more}": more}
        for mark, part in parts.items():
            source = source.replace(mark, part)
        (self.folder / "play.py").write_text(names + source)

    def start(self, *arguments: str, program: str = "tailrace", **environ: str) -> warm.Process:
        """`tailrace project`, or `faust worker`."""
        command = {
            "tailrace": [*warm.TAILRACE, "project", "play:app", "--log-json", *arguments],
            "faust": ["-m", "faust", "-W", ".", "-A", "play:app", "worker", *arguments],
        }[program]
        process = warm.Process(
            command, output=self.log_file, cwd=self.folder, env={**os.environ, **environ}, modules=warm.PROJECTION
        )
        self.processes.append(process)
        return process

    @property
    def log_file(self) -> Path:
        return self.folder / "log"

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def seen(self) -> list[str]:
        """The values of the records that were taken, in order."""
        file = self.folder / "seen"
        return [line.split(" ", 2)[2] for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def told(self) -> list[tuple[str, Any]]:
        file = self.folder / "told"
        return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Waits for it; a process that ended without it fails the test."""
        process = self.processes[-1]
        try:
            wait_until(lambda: condition() or process.poll() is not None, 90, what=what)
        except StackError:
            pytest.fail(f"{what} did not come, but {self.seen[-5:]}, {self.told[-5:]}:\n{self.log}")
        assert condition(), f"ended with {process.returncode} before {what}:\n{self.log}"

    def stop(self) -> int:
        self.processes[-1].send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        try:
            return self.processes[-1].wait(60)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it did not end:\n{self.log}")

    def transaction(self, *values: str, abort: bool = False) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "transactional.id": self.name, "log_level": 0})
        producer.init_transactions(30)
        self.transact(producer, *values, abort=abort)

    def transact(self, producer: Producer, *values: str, abort: bool = False) -> None:
        producer.begin_transaction()
        for value in values:
            producer.produce(self.name, value, b"key")
        if abort:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)

    def committed(self, topic: str = "") -> int | None:
        """What Kafka has as the group's next offset of partition 0; None if it cannot tell yet."""
        try:
            found = self.looker.committed([TopicPartition(topic or self.name, 0)], timeout=10)
        except KafkaException:
            return None
        return found[0].offset

    def end(self) -> int:
        """The offset behind the last stable record of partition 0."""
        asked = {TopicPartition(self.name, 0): OffsetSpec.latest()}
        listed = self.admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
        return next(iter(listed.values())).result(30).offset

    def close(self) -> None:
        self.looker.close()
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def play(kafka: KafkaBroker, tmp_path: Path) -> Iterator[Play]:
    play = Play(kafka, tmp_path)
    yield play
    play.close()


def test_aborted_transactions_are_never_delivered(play: Play) -> None:
    play.transaction("one")
    play.transaction("never", "never", abort=True)
    play.transaction("two")
    play.start()
    play.until(lambda: "two" in play.seen, "the last event")
    assert play.seen == ["one", "two"]
    assert play.stop() == 0
    assert json.loads(play.log.splitlines()[-1])["event"] == "stopped"


def test_a_plain_faust_app_delivers_what_was_aborted(play: Play) -> None:
    """What the kit is for; and the proof that the test above can fail."""
    play.transaction("one")
    play.transaction("never", "never", abort=True)
    play.transaction("two")
    play.write(source=PLAIN)
    play.start("--without-web", program="faust")
    play.until(lambda: "two" in play.seen, "the last event")
    assert "never" in play.seen


def test_kafka_is_told_the_progress_across_transaction_markers(play: Play) -> None:
    producer = Producer({"bootstrap.servers": play.kafka.bootstrap, "transactional.id": play.name, "log_level": 0})
    producer.init_transactions(30)
    play.transact(producer, "first")
    play.write(source=APP.replace(".noack()", ""))  # acks mean nothing, even if they are given
    play.start()
    play.until(lambda: play.seen, "the first event")
    for number in range(300):
        play.transact(producer, f"{number}", abort=number % 10 == 9)
    play.until(lambda: len(play.seen) == 271, "the last event")
    play.until(lambda: play.committed() == play.end(), "the end as committed offset")
    assert play.stop() == 0
    # Faust's own accounts (acks, and gaps between offsets) stay empty: over months they would fill the memory.
    assert play.told[-1] == ("revoked", [0, 0, 0])


def test_the_committed_offset_never_runs_ahead_of_the_store(play: Play) -> None:
    play.transaction(*map(str, range(5)))
    play.write(
        more="""
async def then(message):
    if message.offset == 2:
        coordinator.next[Partition(TOPIC, 0)] = 2  # the store has not committed it
        await app._stopped.wait()
"""
    )
    play.start()
    play.until(lambda: "2" in play.seen, "the third event")
    play.until(lambda: play.committed() == 2, "two events as committed")
    assert play.stop() == 0
    assert play.committed() == 2


def test_a_restart_reads_on_where_the_guide_says_not_where_kafka_does(play: Play) -> None:
    play.transaction(*map(str, range(5)))
    play.start()
    play.until(lambda: play.committed() == play.end(), "the end as committed offset")
    assert play.stop() == 0
    (play.folder / "seen").write_text("0 0 0\n0 1 1\n")  # the store was restored from a backup
    play.start()
    play.until(lambda: len(play.seen) >= 5, "what comes behind the stored position")
    assert play.seen == ["0", "1", "2", "3", "4"]
    assert ("assigned", {f"{play.name}[0]": 2}) in play.told


def test_a_new_projection_may_begin_with_the_latest(play: Play) -> None:
    play.transaction("old")
    play.write(guided=', start="latest"')
    play.start()
    play.until(lambda: play.told, "the assignment")
    assert play.told == [("assigned", {f"{play.name}[0]": play.end()})]
    play.transaction("new")
    play.until(lambda: play.seen, "the new event")
    assert play.seen == ["new"]


@pytest.mark.parametrize("program", ["tailrace", "faust"])
def test_events_that_retention_deleted_are_missed(play: Play, program: str) -> None:
    play.transaction(*map(str, range(5)))
    (play.folder / "seen").write_text("0 1 1\n")
    play.admin.delete_records([TopicPartition(play.name, 0, 4)])[TopicPartition(play.name, 0)].result(30)
    play.start(program=program)
    assert play.ended() == 3
    assert "EventsLost" in play.log
    assert play.log.count("why:    Retention deleted 2 offsets") == 1
    assert "--reset earliest" in play.log
    assert play.seen == ["1"]


@pytest.mark.parametrize("program", ["tailrace", "faust"])
def test_a_topic_that_was_made_anew_is_noticed(play: Play, program: str) -> None:
    play.transaction("other")
    (play.folder / "seen").write_text("0 1000 x\n")
    play.start(program=program)
    assert play.ended() == 3
    assert play.log.count("TopicReplaced: ") == 1
    assert play.seen == ["x"]


def test_events_that_retention_deletes_while_they_wait_are_missed(play: Play) -> None:
    """aiokafka would go on with the first one that is left, without a word."""
    play.write(
        settings=", consumer_max_fetch_size=1000",
        more="""
async def then(message):
    if message.offset == 0:
        app.reader.hold(Partition(TOPIC, 0), "test")
        Path("held").touch()

@app.timer(0.2)
async def release():
    if Path("go").exists():
        app.reader.release(Partition(TOPIC, 0), "test")
""",
    )
    play.start()
    producer = Producer({"bootstrap.servers": play.kafka.bootstrap, "log_level": 0})
    producer.produce(play.name, b"first", partition=0)
    producer.flush(30)
    play.until((play.folder / "held").exists, "the hold")
    for _ in range(50):
        producer.produce(play.name, bytes(900).replace(b"\0", b"-"), partition=0)
        producer.flush(30)
    play.admin.delete_records([TopicPartition(play.name, 0, 50)])[TopicPartition(play.name, 0)].result(30)
    (play.folder / "go").touch()
    assert play.ended() == 3
    assert '"error": "EventsLost"' in play.log


def test_holding_a_partition_loses_nothing(kafka: KafkaBroker, tmp_path: Path) -> None:
    play = Play(kafka, tmp_path, partitions=2)
    try:
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        for number in range(3000):
            producer.produce(play.name, f"{number}", partition=number % 2)
        producer.flush(30)
        play.write(
            settings=", broker_max_poll_records=100",
            more="""
import asyncio

async def then(message):
    if message.offset % 70 == 0:
        partition = Partition(message.topic, message.partition)
        app.reader.hold(partition, "test")
        asyncio.get_running_loop().call_later(0.01, app.reader.release, partition, "test")
""",
        )
        play.start()
        play.until(lambda: len(play.seen) >= 3000, "the last event")
        assert play.stop() == 0
        assert [value for value in play.seen if int(value) % 2 == 0] == [str(n) for n in range(0, 3000, 2)]
        assert [value for value in play.seen if int(value) % 2 == 1] == [str(n) for n in range(1, 3000, 2)]
    finally:
        play.close()


def test_after_a_seek_nothing_old_is_current(play: Play) -> None:
    producer = Producer({"bootstrap.servers": play.kafka.bootstrap, "log_level": 0})
    for number in range(1000):
        producer.produce(play.name, f"{number}", partition=0)
    producer.flush(30)
    play.write(
        settings=", broker_max_poll_records=50",
        more="""
sought = []

async def then(message):
    if message.offset in (200, 700) and message.offset not in sought:
        sought.append(message.offset)
        await app.reader._begin({message.tp: message.offset - 150})
""",
    )
    play.start()
    play.until(lambda: "999" in play.seen, "the last event")
    assert play.seen == [str(n) for n in [*range(201), *range(50, 701), *range(550, 1000)]]


def test_other_agents_of_the_app_keep_faust_s_own_ways(play: Play) -> None:
    other = f"{play.name}-other"
    play.kafka.create_topic(other)
    play.write(
        more=f"""
@app.agent(app.topic({other!r}))
async def others(stream):
    async for event in stream.events():
        with Path("others").open("a") as file:
            file.write(event.message.value.decode() + "\\n")
"""
    )
    producer = Producer({"bootstrap.servers": play.kafka.bootstrap, "log_level": 0})
    for value in ("a", "b", "c"):
        producer.produce(other, value, partition=0)
        producer.produce(play.name, value, partition=0)
    producer.flush(30)
    play.start()
    play.until(lambda: play.committed(other) == 3, "the other topic's offset")
    play.until(lambda: len(play.seen) == 3, "the projection's events")
    assert play.stop() == 0
    play.start()
    play.transaction("d")
    play.until(lambda: "d" in play.seen, "the new event")
    assert (play.folder / "others").read_text().split() == ["a", "b", "c"]


def test_partitions_that_move_between_workers_lose_and_repeat_nothing(kafka: KafkaBroker, tmp_path: Path) -> None:
    play = Play(kafka, tmp_path, partitions=4)
    try:
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        play.start()
        play.until(lambda: play.told, "the first assignment")
        second = None
        for number in range(2000):
            producer.produce(play.name, f"{number}", partition=number % 4)
            if number % 100 == 0:
                producer.flush(30)
            if number == 700:
                second = play.start()
            if number == 1400 and second is not None:
                play.until(lambda: len(play.told[-1][1]) == 2 and len(play.seen) > 700, "a shared assignment")
                second.send_signal(signal.SIGTERM)
        producer.flush(30)
        assert second is not None
        assert second.wait(60) == 0, play.log
        play.processes.remove(second)
        play.until(lambda: len(play.seen) >= 2000, "the last event")
        assert sorted(play.seen, key=int) == [str(number) for number in range(2000)]
    finally:
        play.close()


REFUSED = {
    "exactly_once": ({"PROCESSING_GUARANTEE": "exactly_once"}, {}),
    "stream_wait_empty": ({"STREAM_WAIT_EMPTY": "yes"}, {}),
    "web server": ({}, {"settings": ", web_enabled=True"}),
    "value_serializer is pickle": ({}, {"settings": ', value_serializer="json|pickle"'}),
    "several tasks": ({}, {"agent": ", concurrency=2"}),
    "kafka://": ({}, {"broker": "confluent://localhost:1"}),
}


@pytest.mark.parametrize("told", REFUSED)
def test_settings_that_break_the_guarantees_are_refused(play: Play, told: str) -> None:
    environ, parts = REFUSED[told]
    play.transaction("one")
    play.write(**parts)
    play.start(PYTHONWARNINGS="ignore", **environ)
    assert play.ended() == 2, play.log
    assert '"error": "ConfigError"' in play.log
    assert told in play.log
    assert not play.seen


def test_faust_s_own_command_starts_no_web_server_and_leaves_no_folder(play: Play) -> None:
    play.transaction("one")
    process = play.start(program="faust")
    play.until(lambda: play.seen, "the first event")
    listening = [c.laddr for c in psutil.Process(process.pid).net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert listening == []
    assert play.stop() == 0
    assert {path.name for path in play.folder.iterdir()} <= {"play.py", "log", "seen", "told", "__pycache__"}


def test_kafka_that_is_away_at_the_start_is_waited_for(play: Play) -> None:
    play.write(broker="kafka://127.0.0.1:1")
    play.start()
    play.until(lambda: '"waiting"' in play.log, "word that it waits")
    assert play.stop() == 0


@pytest.mark.parametrize(("how", "code"), [("app.fail(Halted('enough'))", 3), ("os.kill(os.getpid(), 15)", 0)])
def test_a_worker_ends_in_time_whatever_its_lanes_wait_for(play: Play, how: str, code: int) -> None:
    play.transaction("one")
    play.write(
        more=f"""
import asyncio, os
from tailrace.errors import Halted

async def then(message):
    {how}

async def never():
    await asyncio.Event().wait()

coordinator.revoked = never
"""
    )
    play.start()
    assert play.ended() == code, play.log
    assert ("Halted: enough" in play.log) == (code == 3)


def test_a_bug_of_the_app_ends_the_worker(play: Play) -> None:
    play.transaction("one")
    play.write(
        more="""
async def then(message):
    app.fail(ZeroDivisionError("a bug"))
"""
    )
    play.start()
    assert play.ended() == 70
    assert "ZeroDivisionError: a bug" in play.log
