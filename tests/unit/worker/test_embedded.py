"""What a pipeline with an embedded outbox refuses, without a server."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.config.load import load_pipeline
from tailrace.embedded import EmbeddedOutbox, strict
from tailrace.errors import ConfigError, KafkaUnavailable, PositionAhead, SourceEmbedded, WrongLog
from tailrace.positions.archive import ArchivePosition
from tailrace.positions.base import Position, from_stored, to_stored
from tailrace.positions.embedded import EmbeddedPosition
from tailrace.sources.embedded.source import EmbeddedSource
from tailrace.testkit.stack import wait_until
from tailrace.wakeup import Wakeup
from tailrace.worker.embedded import EmbeddedPipeline
from tailrace.worker.wiring import wire


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mempool.yaml"
    path.write_text("pipeline: mempool\nsource: {rocksdb: outbox}\nkafka: {bootstrap: 'localhost:1'}\n")
    return path


def test_another_folder_is_refused(file: Path, tmp_path: Path) -> None:
    with EmbeddedOutbox(tmp_path / "other") as outbox, pytest.raises(ConfigError, match="does not read the outbox"):
        EmbeddedPipeline(file, outbox)


def test_a_position_is_stored_as_it_is() -> None:
    position = EmbeddedPosition("ab" * 16, 7, 1000)
    assert from_stored(to_stored(position)) == position
    assert [position.covers(text) for text in ("7", "8", "0/1:1")] == [True, False, False]
    assert not position.is_alike(EmbeddedPosition("cd" * 16, 7))


def test_positions_of_other_outboxes_and_older_copies_are_refused(tmp_path: Path) -> None:
    with EmbeddedOutbox(tmp_path / "outbox") as outbox:
        outbox.write("a", b"1")
        source = EmbeddedSource(outbox, "mempool", wakeup=Wakeup())
        source.check_start(None)
        source.check_start(EmbeddedPosition(outbox.identity, 1, 0, outbox.epoch(1)))
        with pytest.raises(PositionAhead, match="restored") as ahead:
            source.check_start(EmbeddedPosition(outbox.identity, 2))
        assert "adopt=True" in ahead.value.remedy
        for other in (EmbeddedPosition("ab" * 16, 1), ArchivePosition("a")):
            with pytest.raises(WrongLog):
                source.check_start(other)
        adopting = EmbeddedSource(outbox, "mempool", wakeup=Wakeup(), adopt=True)
        stored: list[Position] = []
        assert adopting.open(EmbeddedPosition("ab" * 16, 9), stored.append).sequence == 0
        source.check_start(stored[0])
        assert len(adopting.read(10, 1000, 0).rows) == 1


def test_an_older_copy_that_was_written_to_is_refused_and_keeps_its_entries(tmp_path: Path) -> None:
    """The service accepts entries before its pipeline starts: their numbers were given to others by the original."""
    with EmbeddedOutbox(tmp_path / "outbox") as outbox:
        outbox.write("both", b"1")
    shutil.copytree(tmp_path / "outbox", tmp_path / "copy")
    with EmbeddedOutbox(tmp_path / "outbox") as outbox:
        original = EmbeddedSource(outbox, "mempool", wakeup=Wakeup())
        original.open(None, lambda _: None)
        for number in range(3):
            outbox.write(f"lost-{number}", b"1")
        published = original.read(10, 10_000, 0)
    for number in range(5):  # each start of the service is another epoch
        with EmbeddedOutbox(tmp_path / "copy") as outbox:
            outbox.write(f"new-{number}", b"1")
    with EmbeddedOutbox(tmp_path / "copy") as outbox:
        source = EmbeddedSource(outbox, "mempool", wakeup=Wakeup())
        with pytest.raises(PositionAhead, match="never had"):
            source.open(published.position, lambda _: None)
        assert outbox.count == 6
        adopting = EmbeddedSource(outbox, "mempool", wakeup=Wakeup(), adopt=True)
        adopting.open(published.position, lambda _: None)
        adopting.confirm(published.position)  # as the loop does: it is what Kafka has stored
        assert outbox.count == 6
        chunk = adopting.read(10, 10_000, 0)
        again = {row.values[0] for row in chunk.rows} & {row.values[0] for row in published.rows}
        assert again == {published.rows[0].values[0]}, "consumers would drop new entries as known"
        adopting.confirm(chunk.position)
        assert outbox.count == 0
        adopting.close()
        later = EmbeddedSource(outbox, "mempool", wakeup=Wakeup(), adopt=True)
        outbox.write("later", b"1")
        assert later.open(chunk.position, lambda _: None).sequence == 6, "adopted once"


def test_starts_with_and_without_entries_are_resumed(tmp_path: Path) -> None:
    position: Position | None = None
    for number in range(4):
        with EmbeddedOutbox(tmp_path / "outbox") as outbox:
            source = EmbeddedSource(outbox, "mempool", wakeup=Wakeup())
            source.open(position, lambda _: None)
            for key in ("a", "b"):
                outbox.write(f"{key}-{number}", b"1")
            position = source.read(1, 1000, 0).position
        EmbeddedOutbox(tmp_path / "outbox").close()
    with EmbeddedOutbox(tmp_path / "outbox") as outbox:
        EmbeddedSource(outbox, "mempool", wakeup=Wakeup()).check_start(position)
        assert outbox.count == 5, "three of eight were confirmed"


def test_entries_behind_one_in_flight_wait_and_stored_ones_are_deleted(tmp_path: Path) -> None:
    with EmbeddedOutbox(tmp_path / "outbox") as outbox:
        source = EmbeddedSource(outbox, "mempool", wakeup=Wakeup())
        source.open(None, lambda _: None)
        outbox.write("a", b"1")
        flying = outbox.begin("b", b"\xff")
        outbox.write("c", b"3")
        chunk = source.read(10, 1000, 0)
        assert [row.values[2] for row in chunk.rows] == [b"a"]
        outbox.accepted("b", flying)
        later = source.read(10, 1000, 0)
        assert [(row.values[2], row.values[4]) for row in later.rows] == [(b"b", b"\xff"), (b"c", b"3")]
        source.confirm(chunk.position)
        assert outbox.count == 2
        source.close()
        again = EmbeddedSource(outbox, "mempool", wakeup=Wakeup())
        assert again.open(later.position, lambda _: None).sequence == 3
        assert (outbox.count, again.read(10, 1000, 0).rows) == (0, [])


def test_a_wiring_for_other_processes_says_who_can_open_it(file: Path) -> None:
    with pytest.raises(SourceEmbedded, match="reads the embedded outbox"):
        wire(load_pipeline(file))


@pytest.mark.slow
def test_without_kafka_the_service_goes_on_accepting(file: Path, tmp_path: Path) -> None:
    with EmbeddedOutbox(tmp_path / "outbox") as outbox:
        with EmbeddedPipeline(file, outbox) as pipeline:
            with strict(outbox, "a", b"1"):
                pass
            wait_until(lambda: pipeline.state == "RETRYING", 60)
            assert isinstance(pipeline.error, KafkaUnavailable)
            assert not pipeline.healthy
            assert outbox.count == 1
        wait_until(lambda: pipeline.state == "STOPPED", 60)
        assert [entry.key for entry in outbox.read()] == [b"a"]


@pytest.mark.parametrize(
    "command",
    [["run"], ["verify"], ["replay", "plan"], ["recover", "plan"], ["retention", "plan"], ["archive", "write"]],
    ids=" ".join,
)
def test_commands_that_read_a_database_refuse(file: Path, command: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tailrace", *command, str(file)], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 2
    assert "SourceEmbedded" in ended.stderr
    assert "EmbeddedPipeline" in ended.stderr
    assert "Traceback" not in ended.stderr
