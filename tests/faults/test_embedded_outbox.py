"""Services with an embedded outbox that are killed around every step: into MongoDB, and through a pipeline to Kafka."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace import failpoints
from tailrace.embedded import EmbeddedOutbox, strict
from tailrace.testkit.stack import KafkaBroker, MongoServer, wait_until
from tailrace.testkit.topic_reader import header, read_all
from tailrace.worker.embedded import EmbeddedPipeline

SERVICE = """
import sys, time
from tailrace.backoff import Backoff
from tailrace.embedded import Drainer, EmbeddedOutbox, MongoTarget, strict

class Refused(Exception): pass

kind, folder, where, name, first = sys.argv[1:]
outbox = EmbeddedOutbox(folder + "/outbox")
if kind == "mongo":
    target = MongoTarget(where, name, "mirror", lambda entry: {"_id": entry.text_key, "raw": entry.raw})
    drain = Drainer(outbox, target, batch=5, within=0.02, backoff=Backoff(0.1, 0.5))
else:
    from tailrace.worker.embedded import EmbeddedPipeline
    drain = EmbeddedPipeline(folder + "/pipeline.yaml", outbox)
drain.start()
for number in range(int(first), int(first) + 100_000):
    try:
        with strict(outbox, f"k-{number}", f'{{"n": {number}}}'.encode()):
            if number % 5 == 4:
                raise Refused
            print("accepted", number, flush=True)
    except Refused:
        print("rejected", number, flush=True)
    time.sleep(0.002)
    if kind == "kafka" and drain.error is not None:
        print("error", drain.error, flush=True)
"""


class Service:
    """A process that accepts and drains, and is started again after each kill."""

    def __init__(self, kind: str, folder: Path, where: str, name: str) -> None:
        self._arguments = [kind, str(folder), where, name]
        self._log = folder / "service.log"
        self.folder = folder
        self.kind = kind

    def run(self, *, kill: str = "", lines: int = 0) -> None:
        """Runs until the failpoint `kill`, or kills it after so many lines."""
        first = max([*self.numbers("accepted"), *self.numbers("rejected"), *self.captured(), -1]) + 1
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", SERVICE, *self._arguments, str(first)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TAILRACE_KILL": kill},
            )
            try:
                known = self._lines()
                wait_until(
                    lambda: process.poll() is not None or (not kill and self._lines() >= known + lines),
                    120,
                    what=f"a death at {kill or lines}",
                )
            finally:
                process.kill()
                process.wait()
        assert process.returncode == -signal.SIGKILL, self._log.read_text()[-3000:]

    def numbers(self, what: str) -> set[int]:
        lines = self._log.read_text().splitlines(keepends=True) if self._log.exists() else []
        return {int(line.split()[1]) for line in lines if line.startswith(what) and line.endswith("\n")}

    def captured(self) -> set[int]:
        """What is in the outbox; the service does not run."""
        with EmbeddedOutbox(self.folder / "outbox") as outbox:
            return {int(entry.text_key[2:]) for entry in outbox.read(1_000_000)}

    def _lines(self) -> int:
        return self._log.read_bytes().count(b"\n") if self._log.exists() else 0


def kills(service: Service, points: tuple[str, ...], chance: random.Random, *, at_random: int) -> int:
    """Kills it at each of the points, and at random moments; returns how often."""
    kinds = [*points, *[""] * at_random]
    for kind in chance.sample(kinds, len(kinds)):
        if kind:
            service.run(kill=f"{kind}:{chance.randint(2, 5)}")
        else:
            service.run(lines=chance.randint(5, 60))
    return len(kinds)


@pytest.mark.parametrize("at_random", [2, pytest.param(15, marks=pytest.mark.slow)])
def test_a_mirror_killed_at_every_step(mongo: MongoServer, tmp_path: Path, at_random: int) -> None:
    """In the end the mirror has what was accepted, and of what was not only that of a death within the acceptance."""
    name = f"mirror_{uuid.uuid4().hex[:8]}"
    service = Service("mongo", tmp_path, mongo.uri, name)
    points = (*failpoints.EMBEDDED_DRAIN, *failpoints.ACCEPTING)
    count = kills(service, points, random.Random(at_random), at_random=at_random)
    with mongo.client() as client:
        mirrored = {int(each["_id"][2:]): each["raw"] for each in client[name]["mirror"].find()}
        client.drop_database(name)
    accepted, rejected, left = service.numbers("accepted"), service.numbers("rejected"), service.captured()
    assert mirrored, "nothing was drained"
    assert accepted <= mirrored.keys() | left
    assert not rejected & (mirrored.keys() | left)
    assert len((mirrored.keys() | left) - accepted) <= count
    assert all(json.loads(raw) == {"n": number} for number, raw in mirrored.items())


class Published:
    """A pipeline with its topic."""

    def __init__(self, kafka: KafkaBroker, folder: Path) -> None:
        self.kafka = kafka
        self.name = f"mempool-{uuid.uuid4().hex[:8]}"
        self.topic = f"{self.name}.transactions"
        self.file = folder / "pipeline.yaml"
        self.outbox = folder / "outbox"
        self.file.write_text(
            f"pipeline: {self.name}\nsource: {{rocksdb: outbox}}\nkafka: {{bootstrap: '{kafka.bootstrap}'}}\n"
            f"topics: {{template: {self.topic}, partitions: 1}}\n"
        )

    def records(self) -> list[tuple[str, str, bytes]]:
        """Returns key, id and value of the records that a reader of committed transactions gets."""
        found = read_all(self.kafka.bootstrap, [self.topic])
        return [((each.key() or b"").decode(), header(each, "id"), each.value() or b"") for each in found]


@pytest.fixture
def published(kafka: KafkaBroker, tmp_path: Path) -> Iterator[Published]:
    return Published(kafka, tmp_path)  # type: ignore[return-value]


PIPELINE = (
    failpoints.ROWS_READ,
    failpoints.BEFORE_PRODUCE,
    failpoints.AFTER_PRODUCE,
    failpoints.AFTER_COMMIT,
    failpoints.AFTER_CONFIRM,
)


@pytest.mark.slow
@pytest.mark.parametrize("at_random", [2, 15])
def test_a_pipeline_killed_at_every_step(published: Published, tmp_path: Path, at_random: int) -> None:
    """Each accepted entry is published once, in the order of the acceptances, and no rejected one."""
    service = Service("kafka", tmp_path, "", "")
    count = kills(service, PIPELINE, random.Random(at_random), at_random=at_random)
    with EmbeddedOutbox(published.outbox) as outbox, EmbeddedPipeline(published.file, outbox) as pipeline:
        wait_until(lambda: outbox.count == 0 or pipeline.error is not None, 60)
        assert pipeline.error is None
    accepted, rejected = service.numbers("accepted"), service.numbers("rejected")
    records = published.records()
    numbers = [int(key[2:]) for key, _, _ in records]
    assert len({event_id for _, event_id, _ in records}) == len(records)
    assert numbers == sorted(set(numbers)), "published twice, or out of order"
    assert accepted <= set(numbers)
    assert not rejected & set(numbers)
    assert len(set(numbers) - accepted) <= count
    assert all(json.loads(value) == {"n": int(key[2:])} for key, _, value in records)


def test_life_of_a_pipeline_in_a_service(published: Published, tmp_path: Path) -> None:
    """Rejections, replaced entries, an older copy and a new outbox."""
    outbox = EmbeddedOutbox(published.outbox)
    with EmbeddedPipeline(published.file, outbox) as pipeline:
        for number in range(5):
            with strict(outbox, f"k-{number}", b"1"):
                pass
        with pytest.raises(KeyError), strict(outbox, "rejected", b"1"):
            raise KeyError
        outbox.write("binary", b"\xff\x00")
        wait_until(lambda: outbox.count == 0 and pipeline.healthy, 60, what="everything to be published")
    assert (pipeline.state, pipeline.error) == ("STOPPED", None)
    assert str(pipeline.position).startswith("entry 7 of the embedded outbox")
    outbox.close()
    shutil.copytree(published.outbox, tmp_path / "copy")
    keys = [*(f"k-{number}" for number in range(5)), "binary"]
    assert [key for key, _, _ in published.records()] == keys
    assert published.records()[-1][2] == b"\xff\x00"

    with EmbeddedOutbox(published.outbox) as outbox, EmbeddedPipeline(published.file, outbox):
        outbox.write("k-5", b"1")
        wait_until(lambda: outbox.count == 0, 60)
    refused = {"copy": ("PositionAhead", "restored from an older copy"), "new": ("WrongLog", "created again")}
    for kind, (error, why) in refused.items():
        shutil.rmtree(published.outbox)
        if kind == "copy":
            shutil.copytree(tmp_path / "copy", published.outbox)
        with EmbeddedOutbox(published.outbox) as outbox:
            outbox.write("waits", b"1") if kind == "new" else None
            with EmbeddedPipeline(published.file, outbox) as pipeline:
                wait_until(lambda: pipeline.state == "FAILED", 60)
            assert error in str(pipeline.error)
            assert why in str(pipeline.error)
            assert not pipeline.healthy
    with EmbeddedOutbox(published.outbox) as outbox, EmbeddedPipeline(published.file, outbox, adopt=True):
        wait_until(lambda: outbox.count == 0, 60)
    assert [key for key, _, _ in published.records()] == [*keys, "k-5", "waits"]


def test_an_older_copy_that_got_new_entries_is_adopted_without_loss(published: Published, tmp_path: Path) -> None:
    """Their numbers were given to others by the original, and published; their ids must not be the same."""

    def drained(*keys: str, adopt: bool = False) -> None:
        with EmbeddedOutbox(published.outbox) as outbox:
            for key in keys:
                outbox.write(key, b"1")
            with EmbeddedPipeline(published.file, outbox, adopt=adopt) as pipeline:
                wait_until(lambda: pipeline.error is not None or (outbox.count == 0 and pipeline.healthy), 60)
                assert pipeline.error is None

    drained("both")
    shutil.copytree(published.outbox, tmp_path / "copy")
    lost, new = [[f"{kind}-{number}" for number in range(count)] for kind, count in (("lost", 3), ("new", 2500))]
    drained(*lost)
    shutil.rmtree(published.outbox)
    shutil.copytree(tmp_path / "copy", published.outbox)
    with EmbeddedOutbox(published.outbox) as outbox:
        for key in new:
            outbox.write(key, b"1")
        with EmbeddedPipeline(published.file, outbox) as pipeline:
            wait_until(lambda: pipeline.state == "FAILED", 60)
            assert "PositionAhead" in str(pipeline.error)
        assert outbox.count == len(new)
    drained(adopt=True)
    drained("last")
    records = published.records()
    assert [key for key, _, _ in records] == ["both", *lost, *new, "last"]
    assert len({event_id for _, event_id, _ in records}) == len(records)
