"""Projection apps that run as processes, with a file as their store.

The coordinator of an app appends each applied record to the file `applied`, which is also the stored offset.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from helpers import warm_processes as warm
from tailrace.testkit.stack import KafkaBroker, StackError, wait_until

COORDINATOR = """
import json
from pathlib import Path

from tailrace.projections.faust.app import projection_app
from tailrace.projections.faust.offset_coordinator import StoredOffset
from tailrace.projections.core.store import Partition

class FileCoordinator:
    def __init__(self, *topics, start="earliest"):
        self.topics, self.start, self.next, self.calls = topics, start, {}, []
        self.applied = Path("applied").open("a", buffering=1)

    def owns(self, topic):
        return topic in self.topics

    async def positions(self, partitions):
        stored = {}
        for line in Path("applied").read_text().splitlines():
            number, offset, _ = line.split(" ", 2)
            stored[int(number)] = int(offset) + 1
        return {partition: [StoredOffset(stored.get(partition.number), self.start)] for partition in partitions}

    async def assigned(self, starts):
        self.next = {partition: offset for partition, [offset] in starts.items()}
        self.record("assigned", {str(partition): offset for partition, offset in self.next.items()})

    async def revoked(self):
        consumer = app.consumer
        self.record("revoked", [len(consumer._acked), len(consumer._acked_index), len(consumer._gap)])

    def progress(self):
        return self.next

    def record(self, what, value):
        with Path("calls").open("a") as calls:
            calls.write(json.dumps([what, value]) + "\\n")

    def take(self, message):
        assert self.next, "a record came before its assignment"
        self.applied.write(f"{message.partition} {message.offset} {(message.value or b'').decode()}\\n")
        self.next[Partition(message.topic, message.partition)] = message.offset + 1
"""

APP = (
    COORDINATOR
    + """
app = projection_app(NAME, broker=BROKER, broker_commit_interval=0.2{settings})
coordinator = app.coordinator = FileCoordinator(TOPIC{coordinator_options})

@app.agent(app.topic(TOPIC){agent})
async def read(stream):
    async for event in stream.noack().events():
        epoch = getattr(event.message, "epoch", None)
        if epoch is not None and epoch == app.reader._delivery.epoch(event.message.tp):
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
applied = Path("applied").open("a", buffering=1)

@app.agent(app.topic(TOPIC))
async def read(stream):
    async for event in stream.events():
        applied.write(f"{event.message.partition} {event.message.offset} {event.message.value.decode()}\\n")
"""


class AppRun:
    """A topic, an app that reads it, and the folder it runs in."""

    def __init__(self, kafka: KafkaBroker, folder: Path, partitions: int = 1) -> None:
        self.kafka = kafka
        self.folder = folder
        self.name = f"app-{uuid.uuid4().hex[:8]}"
        self.processes: list[warm.Process] = []
        self.admin = kafka.admin()
        # It never joins the group. The admin client crashes before the group has a coordinator.
        self.group_reader = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": self.name, "log_level": 0})
        kafka.create_topic(self.name, partitions)
        self.write()

    def write(
        self,
        *,
        source: str = APP,
        settings: str = "",
        coordinator_options: str = "",
        agent: str = "",
        more: str = "",
        broker: str = "",
    ) -> None:
        """Writes the app that `start` runs."""
        address = broker or f"kafka://{self.kafka.bootstrap}"
        names = f"NAME = TOPIC = {self.name!r}\nBROKER = {address!r}\n"
        parts = {"{settings}": settings, "{coordinator_options}": coordinator_options, "{agent}": agent, "{more}": more}
        for placeholder, part in parts.items():
            source = source.replace(placeholder, part)
        (self.folder / "app_module.py").write_text(names + source)

    def start(self, *arguments: str, program: str = "tailrace", **environ: str) -> warm.Process:
        """Starts `tailrace project` or `faust worker`."""
        command = {
            "tailrace": [*warm.TAILRACE, "project", "app_module:app", "--log-json", *arguments],
            "faust": ["-m", "faust", "-W", ".", "-A", "app_module:app", "worker", *arguments],
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
    def applied(self) -> list[str]:
        """The values of the applied records, in order."""
        file = self.folder / "applied"
        return [line.split(" ", 2)[2] for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def calls(self) -> list[tuple[str, Any]]:
        file = self.folder / "calls"
        return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Waits for a condition; fails if the process ends before."""
        process = self.processes[-1]
        try:
            wait_until(lambda: condition() or process.poll() is not None, 90, what=what)
        except StackError:
            pytest.fail(f"{what} did not happen, but {self.applied[-5:]}, {self.calls[-5:]}:\n{self.log}")
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
        """Returns the group's committed offset of partition 0; None if Kafka does not know it yet."""
        try:
            found = self.group_reader.committed([TopicPartition(topic or self.name, 0)], timeout=10)
        except KafkaException:
            return None
        return found[0].offset

    def end(self) -> int:
        """Returns the offset after the last stable record of partition 0."""
        asked = {TopicPartition(self.name, 0): OffsetSpec.latest()}
        listed = self.admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
        return next(iter(listed.values())).result(30).offset

    def close(self) -> None:
        self.group_reader.close()
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
