"""`tailrace dlq` on dead letters of consumers: lists, shows, redrives unchanged and discards them, each once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from helpers import warm_processes as warm
from tailrace import failpoints
from tailrace.cli import main
from tailrace.cli.dlq.context import find_context
from tailrace.dlq import resolutions
from tailrace.dlq.redrive import RedriveItem, RedrivePublisher
from tailrace.dlq.resolutions import Resolution
from tailrace.errors import Fenced, Reason
from tailrace.event import Record
from tailrace.projections.core.event import Event, read_event
from tailrace.projections.core.failures import Failure, dead_letter_record
from tailrace.projections.core.store import Partition
from tailrace.state import offsets
from tailrace.testkit.stack import KafkaBroker, wait_until
from tailrace.testkit.topic_reader import read_all

JsonLines = list[dict[str, Any]]
FAILURE = Failure(Reason.MAX_RETRIES_EXCEEDED, "ValueError: no such order.", "Fix the handler.", 5)

FOR = ("tailrace.redriven.for", b"summary")


class Summary:
    """The topics of a projection, and the dead letters that it would write."""

    def __init__(self, kafka: KafkaBroker, capsys: pytest.CaptureFixture[str]) -> None:
        self.kafka = kafka
        self.source = f"orders-{uuid.uuid4().hex[:8]}"
        self.letters = f"{self.source}.summary.dead-letters"
        self.where = ("--letters", self.letters, "--bootstrap", kafka.bootstrap)
        self._capsys = capsys

    def event(self, number: int, *, value: bytes | None = b'{"n": 1}', headers: Any = None, key: Any = b"k") -> Event:
        own = [("id", f"e-{number}".encode()), ("type", b"Placed"), ("position", f"0/1:{number}".encode()),
               ("timestamp", b"1700000000000")]  # fmt: skip
        return read_event(Partition(self.source, 0), number, key, value, own if headers is None else headers, 1_600_000)

    def dead_letter(self, *events: Event, failure: Failure = FAILURE) -> None:
        self.write(*(dead_letter_record(event, failure, group="summary", topic=self.letters) for event in events))

    def write(self, *records: Record) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for record in records:
            producer.produce(record.topic, record.value, record.key, headers=record.headers)
        assert producer.flush(30) == 0

    def dlq(self, command: str, *arguments: str, code: int = 0, where: tuple[str, ...] | None = None) -> JsonLines:
        """Runs a command with --json; returns an object for each line."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main(["dlq", command, *arguments, *(self.where if where is None else where), "--json"])
        printed = self._capsys.readouterr()
        assert caught.value.code == code, printed
        return [json.loads(line) for line in (printed.out + printed.err).splitlines()]

    def text(self, command: str, *arguments: str) -> str:
        self._capsys.readouterr()
        with pytest.raises(SystemExit):
            main(["dlq", command, *arguments, *self.where])
        return self._capsys.readouterr().out

    def listed(self, *arguments: str) -> JsonLines:
        found: JsonLines = self.dlq("list", *arguments)[0]["letters"]
        return found

    def published(self) -> list[Message]:
        return read_all(self.kafka.bootstrap, [self.source])


@pytest.fixture
def summary(kafka: KafkaBroker, make_topic: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> Summary:
    made = Summary(kafka, capsys)
    make_topic(made.source)
    make_topic(made.letters, message_timestamp_type="LogAppendTime")
    return made


@pytest.fixture
def pipeline_file(summary: Summary, tmp_path: Path) -> Path:
    """The settings of a pipeline with dead letters on the same topic."""
    settings = {
        "pipeline": "shop",
        "source": {"postgres": "postgresql://localhost/shop", "table": "public.outbox"},
        "kafka": {"bootstrap": summary.kafka.bootstrap, "dead_letter_topic": summary.letters},
    }
    file = tmp_path / "shop.yaml"
    file.write_text(json.dumps(settings))
    return file


def test_dead_letters_are_listed_and_shown(summary: Summary) -> None:
    assert summary.dlq("list") == [{"letters": [], "matching": 0}]
    assert summary.dlq("redrive", "--all-open", "--yes") == [{"summary": {}}]
    other = Failure(Reason.POISON_MESSAGE, "not JSON.", "", 1)
    summary.dead_letter(summary.event(1))
    summary.dead_letter(summary.event(2, headers=[], key=None), failure=other)
    first, second = summary.listed()
    assert (first["id"], first["event_id"], first["type"], first["key"]) == ("0-0", "e-1", "Placed", "k")
    assert (first["consumer"], first["attempts"], first["topic"]) == ("summary", "5", summary.source)
    assert (first["reason"], first["remedy"]) == ("max_retries_exceeded", "Fix the handler.")
    assert second["event_id"] == second["position"] == second["place"] == f"{summary.source}[0]@2"
    assert [each["id"] for each in summary.listed("--reason", "poison_message")] == ["0-1"]
    assert [each["id"] for each in summary.listed("--since", "2023-01-01T00:00:00Z")] == ["0-0"]
    (shown,) = summary.dlq("show", "0-0")
    assert (shown["payload"], shown["now"]) == ({"n": 1}, {"passes": True, "topic": summary.source})
    text = summary.text("show", "0-0")
    assert "A redrive publishes it to" in text
    assert f"{summary.source}[0]@1" in text
    assert "no such order" in summary.text("list")


def test_records_are_redriven_unchanged_and_once(summary: Summary) -> None:
    odd = [("a", b""), ("a", b"\xff"), ("tailrace.redriven", b"0-9"), ("timestamp", b"9" * 25), ("none", None)]
    summary.dead_letter(
        summary.event(1),
        summary.event(2, value=None),
        summary.event(3, value=b"", key=b"", headers=odd),
        summary.event(4, value=b"\x00\xff", key=None, headers=[]),
    )
    assert summary.dlq("redrive", "--all-open", "--dry-run")[-1] == {"summary": {"would pass": 4}}
    assert summary.published() == []
    done = summary.dlq("redrive", "--all-open", "--yes", "--why", "fixed")
    assert done[-1] == {"summary": {"redriven": 4}}
    assert summary.dlq("redrive", "--all-open", "--yes") == [{"summary": {}}]
    (skipped, _) = summary.dlq("redrive", "0-1", "--yes")
    assert (skipped["outcome"], skipped["mark"]["why"]) == ("skipped", "fixed")
    found = summary.published()
    assert [(message.key(), message.value()) for message in found] == [
        (b"k", b'{"n": 1}'), (b"k", None), (b"", b""), (None, b"\x00\xff"),
    ]  # fmt: skip
    assert found[0].headers() == [*summary.event(1).headers, ("tailrace.redriven", b"0-0"), FOR]
    assert found[2].headers() == [*odd, ("tailrace.redriven", b"0-2"), FOR]
    assert found[3].headers() == [("tailrace.redriven", b"0-3"), FOR]
    assert all(message.timestamp()[1] > 1_700_000_000_000 for message in found), "or Kafka might delete them at once"
    assert summary.listed() == []
    assert {each["state"] for each in summary.listed("--all")} == {"redriven"}


def test_copies_of_a_dead_letter_count_as_one(summary: Summary) -> None:
    summary.dead_letter(summary.event(1), summary.event(2))
    summary.dead_letter(summary.event(1), failure=Failure(Reason.PROCESSING_TIMEOUT, "too slow.", "", 1))
    summary.dead_letter(summary.event(2))
    assert [each["id"] for each in summary.listed()] == ["0-0", "0-1"]
    assert summary.dlq("list")[0]["matching"] == 2
    assert summary.dlq("redrive", "--all-open", "--yes")[-1] == {"summary": {"redriven": 2}}
    assert len(summary.published()) == 2
    assert summary.listed() == []
    assert [each["state"] for each in summary.listed("--all")] == ["redriven", "redriven"]
    (skipped, _) = summary.dlq("redrive", "0-2", "--yes")
    assert (skipped["outcome"], skipped["mark"]["action"]) == ("skipped", "redriven")
    (shown,) = summary.dlq("show", "0-3")
    assert shown["state"] == "redriven"
    assert len(summary.published()) == 2


def test_redriving_one_copy_resolves_all(summary: Summary) -> None:
    summary.dead_letter(summary.event(1), summary.event(1), summary.event(1))
    reported = summary.dlq("redrive", "0-1", "0-2", "--yes")
    assert reported[-1]["summary"] == {"redriven": 1, "skipped": 1}
    assert len(summary.published()) == 1
    assert summary.listed() == []
    (first,) = summary.listed("--all")
    assert (first["id"], first["state"]) == ("0-0", "redriven")


def test_an_event_that_fails_again_after_its_redrive_is_open(summary: Summary) -> None:
    event = summary.event(1)
    summary.dead_letter(event)
    summary.dlq("redrive", "--all-open", "--yes")
    (message,) = summary.published()
    again: Any = message.headers()
    summary.dead_letter(read_event(Partition(summary.source, 0), 77, message.key(), message.value(), again, 0))  # type: ignore[arg-type]
    (found,) = summary.listed()
    assert (found["id"], found["event_id"], found["position"]) == ("0-1", "e-1", "0/1:1")
    summary.dlq("redrive", "0-1", "--yes")
    assert summary.published()[1].headers() == [*again, ("tailrace.redriven", b"0-1"), FOR]


def test_discarding_one_copy_resolves_all(summary: Summary) -> None:
    summary.dead_letter(summary.event(1), summary.event(2, key=b"other"), summary.event(1))
    (error,) = summary.dlq("discard", "0-0", "--key", "other", "--why", "test", "--yes", code=2)
    assert "has the key 'k'" in error["what"]
    summary.dlq("discard", "0-0", "--key", "k", "--why", "test data", "--yes")
    assert [each["id"] for each in summary.listed()] == ["0-1"]
    assert summary.dlq("redrive", "--all-open", "--yes")[-1] == {"summary": {"redriven": 1}}
    assert [message.key() for message in summary.published()] == [b"other"]
    assert [each["mark"]["action"] for each in summary.listed("--all")] == ["discarded", "redriven"]


def test_a_payload_is_edited_and_redriven(summary: Summary, monkeypatch: pytest.MonkeyPatch) -> None:
    summary.dead_letter(summary.event(1))
    monkeypatch.setenv("EDITOR", "sed -i s/1/2/")
    summary.dlq("redrive", "0-0", "--edit", "--yes")
    (message,) = summary.published()
    assert message.value() == b'{"n": 2}'
    headers: Any = message.headers()
    assert headers[-3:] == [("tailrace.redriven", b"0-0"), FOR, ("tailrace.edited", b"true")]


@pytest.mark.parametrize("point", failpoints.REDRIVING)
def test_a_killed_redrive_is_run_again_and_publishes_once(summary: Summary, point: str) -> None:
    summary.dead_letter(*(summary.event(number) for number in range(4)), summary.event(0))
    command = ("dlq", "redrive", *summary.where, "--all-open", "--yes")
    warm.killed(*command, at=point)
    ran = warm.run(*command)
    assert ran.returncode == 0, ran.stderr
    assert sorted(dict(message.headers() or [])["id"] for message in summary.published()) == [
        b"e-0", b"e-1", b"e-2", b"e-3",
    ]  # fmt: skip
    assert summary.listed() == []


def test_redrives_with_and_without_a_settings_file_fence_each_other(summary: Summary, pipeline_file: Path) -> None:
    summary.dead_letter(summary.event(1))
    by_file = find_context(pipeline_file, summary.letters, "", [])
    (found,) = by_file.reader().dead_letters(by_file.reader().ranges())
    resolutions.ensure(by_file.kafka, offsets.admin_client(by_file.kafka))
    older, newer = (
        RedrivePublisher(context.kafka, context.publishing().topic_manager())
        for context in (by_file, find_context(None, summary.letters, summary.kafka.bootstrap, []))
    )
    older.open()
    newer.open()
    older.add(RedriveItem(found, Resolution("redriven", position=found.position), by_file.publishing().again(found)))
    with pytest.raises(Fenced):
        older.flush()
    assert summary.published() == []


def test_dead_letters_of_pipelines_and_consumers_are_separate(summary: Summary, pipeline_file: Path) -> None:
    """On a shared topic a command sees one kind: it does not fence redrives of the other."""
    summary.dead_letter(summary.event(1))
    own: Any = [("tailrace.pipeline", "shop"), ("tailrace.payload", "original"), ("id", "p-1"), ("type", "T")]
    summary.write(Record(summary.letters, b"{}", b"k", own, 0))
    file = str(pipeline_file)
    assert [each["event_id"] for each in summary.listed()] == ["e-1"]
    both = ("--letters", summary.letters)
    assert [each["event_id"] for each in summary.dlq("list", file, where=both)[0]["letters"]] == ["e-1"]
    assert [each["event_id"] for each in summary.dlq("list", file, where=())[0]["letters"]] == ["p-1"]
    assert "no dead letter 0-1 of a consumer" in summary.dlq("redrive", "0-1", "--yes", code=2)[0]["what"]
    assert "no dead letter 0-0 of shop" in summary.dlq("show", file, "0-0", code=2, where=())[0]["what"]
    assert summary.dlq("redrive", file, "0-0", "--yes", where=both)[-1] == {"summary": {"redriven": 1}}
    assert len(summary.published()) == 1
    assert summary.listed() == []


def test_watch_prints_dead_letters_and_resolutions(summary: Summary, tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    process = warm.Process([*warm.TAILRACE, "dlq", "watch", *summary.where, "--json"], output=out, errors=err)
    try:
        wait_until(lambda: "watching" in err.read_text() or process.poll() is not None, 60, what="watch")
        summary.dead_letter(summary.event(1))
        summary.dlq("discard", "0-0", "--why", "seen", "--yes")
        wait_until(lambda: len(out.read_text().splitlines()) >= 2, 60, what=f"two lines: {err.read_text()}")
    finally:
        process.kill()
        process.wait()
    reported, mark = (json.loads(line) for line in out.read_text().splitlines())
    assert (reported["letter"]["event_id"], reported["letter"]["consumer"]) == ("e-1", "summary")
    assert (mark["mark"]["id"], mark["mark"]["action"]) == ("0-0", "discarded")


def test_a_redrive_fails_if_the_topic_of_the_record_is_gone(summary: Summary) -> None:
    gone = f"{summary.source}.gone"
    summary.dead_letter(read_event(Partition(gone, 0), 1, b"k", b"{}", [], 5))
    (error,) = summary.dlq("redrive", "--all-open", "--yes", code=3)
    assert (error["error"], gone in error["what"]) == ("TopicMissing", True)
    assert gone not in summary.kafka.admin().list_topics(timeout=10).topics
    assert len(summary.listed()) == 1


NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("list",), "neither a settings file nor --bootstrap"),
        (("list", "--letters", "t"), "neither a settings file nor --bootstrap"),
        (("list", "--bootstrap", NOWHERE), "without a topic"),
        (("list", "orders.yaml", "--letters", "t", "--bootstrap", NOWHERE), "no settings file is read"),
        (("redrive", "orders.yaml", "0-1", "--letters", "t", "--bootstrap", NOWHERE), "orders.yaml is not the id"),
        (("redrive", "--letters", "t", "--bootstrap", NOWHERE), "no dead letters are selected"),
        (("discard", "--letters", "t", "--bootstrap", NOWHERE, "--why", "x"), "no dead letters are selected"),
        (("show", "--letters", "t", "--bootstrap", NOWHERE), "no dead letters are given"),
        (("show", "0-1", "0-2", "--letters", "t", "--bootstrap", NOWHERE), "2 dead letters are given"),
        (("list", "orders.yaml", "--kafka-setting", "a=b"), "only used with --bootstrap"),
        (("list", "--letters", "t", "--bootstrap", "no address"), "kafka.bootstrap is 'no address': expected"),
        (("list", "--letters", "t", "--bootstrap", NOWHERE, "--kafka-setting", "sasl.password"), "NAME=VALUE"),
        (("list", "--letters", "t", "--bootstrap", NOWHERE, "--kafka-setting", "acks=1"), "kafka.settings.acks"),
        (("list", "--letters", "t", "--bootstrap", NOWHERE, "--kafka-setting", "no.such=1"), "rejects its settings"),
        (("list", "--letters", "t", "--bootstrap", NOWHERE, "--kafka-setting", "sasl.password=${env:NO_SUCH}"),
         "NO_SUCH is not set"),
    ],
)  # fmt: skip
def test_options_that_name_no_dead_letters_or_two_sources(
    arguments: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["dlq", *arguments, "--json"])
    error = json.loads(capsys.readouterr().err)
    assert (caught.value.code, what in error["what"]) == (2, True), error
    assert error["remedy"]


@pytest.mark.parametrize("command", [("list",), ("show", "0-0"), ("redrive", "0-0", "--yes")])
def test_a_missing_dead_letter_topic_is_an_error(summary: Summary, command: tuple[str, ...]) -> None:
    where = ("--letters", "mistyped", "--bootstrap", summary.kafka.bootstrap)
    (error,) = summary.dlq(*command, code=2, where=where)
    assert error["what"] == "there is no topic mistyped"
    assert not {"mistyped", "mistyped.marks"} & set(summary.kafka.admin().list_topics(timeout=10).topics)


def test_kafka_settings_are_used(summary: Summary, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a protocol that the broker does not speak there is no answer."""
    monkeypatch.setenv("BROKER_PASSWORD", "hush-hush")
    given = ("security.protocol=sasl_plaintext", "sasl.mechanism=PLAIN", "sasl.username=ann",
             "sasl.password=${env:BROKER_PASSWORD}")  # fmt: skip
    (error,) = summary.dlq("list", *(word for each in given for word in ("--kafka-setting", each)), code=3)
    assert error["error"] in ("KafkaUnavailable", "PublishError")
    assert "hush-hush" not in str(error)
    assert summary.dlq("list", "--kafka-setting", "client.rack=a")[0]["matching"] == 0
