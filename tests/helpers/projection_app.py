"""Projection apps that run as processes, with a file as their store.

The store of an app appends each applied record to the file `applied`, which is also the stored offset.
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

APP = """
import json
from contextlib import asynccontextmanager
from pathlib import Path

from tailrace.projections import Projection
from tailrace.projections.core.store import Partition
from tailrace.projections.faust.app import projection_app

class FileTransaction:
    def __init__(self, partition, stored):
        self.partition, self.stored, self.next, self.effects = partition, stored, None, []

    async def position(self):
        return self.stored

    async def advance(self, offset):
        self.next = offset

    async def mark(self, markers):
        return {marker.event_id for marker in markers}

    async def set_outcomes(self, outcomes):
        pass

    async def flush(self):
        pass

class FileStore:
    def __init__(self):
        self.next = {}

    async def open(self, name):
        self.applied = Path("applied").open("a", buffering=1)

    async def close(self):
        pass

    async def positions(self):
        for line in Path("applied").read_text().splitlines():
            number, offset, _ = line.split(" ", 2)
            partition = Partition(TOPIC, int(number))
            self.next[partition] = max(self.next.get(partition, 0), int(offset) + 1)
        return dict(self.next)

    async def furthest(self):
        return {}

    async def reset(self, offsets, *, only_missing):
        for partition, offset in offsets.items():
            self.next.setdefault(partition, offset)

    async def horizon(self):
        return 0

    async def prune(self, before_ms, limit):
        return 0

    def is_transient(self, error):
        return False

    @asynccontextmanager
    async def transaction(self, partition):
        made = FileTransaction(partition, self.next.get(partition))
        yield made
        for event in made.effects:
            self.applied.write(f"{partition.number} {event.offset} {(event.value or b'').decode()}\\n")
        if made.next is not None:
            self.next[partition] = made.next

app = projection_app(NAME, broker=BROKER, broker_commit_interval=0.2{settings})
projection = Projection(app, TOPIC, store=FileStore(), events=1, within=0, decode=lambda event: event.value{options})

@projection.on()
async def append(event, effects):
    effects.append(event)
    await then(event)

async def then(event):
    pass

def record(what, value):
    with Path("calls").open("a") as calls:
        calls.write(json.dumps([what, value]) + "\\n")

assigned = app.coordinator.assigned

async def recorded(starts):
    await assigned(starts)
    record("assigned", {str(partition): offset for partition, [offset] in starts.items()})

app.coordinator.assigned = recorded
{more}
"""

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
        # They never join a group. The admin client crashes before the group has a coordinator.
        self.groups = {
            group: Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "log_level": 0})
            for group in (self.name, f"{self.name}.projections")
        }
        kafka.create_topic(self.name, partitions)
        self.write()

    def write(
        self,
        *,
        source: str = APP,
        settings: str = "",
        options: str = "",
        more: str = "",
        broker: str = "",
    ) -> None:
        """Writes the app that `start` runs."""
        address = broker or f"kafka://{self.kafka.bootstrap}"
        names = f"NAME = TOPIC = {self.name!r}\nBROKER = {address!r}\n"
        parts = {"{settings}": settings, "{options}": options, "{more}": more}
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
        """Returns the committed offset of partition 0, by Faust's own consumer if `topic` is given."""
        reader = self.groups[self.name if topic else f"{self.name}.projections"]
        try:
            found = reader.committed([TopicPartition(topic or self.name, 0)], timeout=10)
        except KafkaException:
            return None
        return found[0].offset

    def end(self) -> int:
        """Returns the offset after the last stable record of partition 0."""
        asked = {TopicPartition(self.name, 0): OffsetSpec.latest()}
        listed = self.admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
        return next(iter(listed.values())).result(30).offset

    def close(self) -> None:
        for reader in self.groups.values():
            reader.close()
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
