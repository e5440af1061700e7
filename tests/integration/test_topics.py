"""`tailrace topics` and `tailrace route` on a real broker: plans, changes and the partitions of keys."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from tailrace.cli import main
from tailrace.kafka.client import KafkaOptions, producer_config
from tailrace.kafka.tail import TopicTail
from tailrace.kafka.topics import topic_states
from tailrace.routing.partition import partition_of
from tailrace.testkit.stack import KafkaBroker, wait_until


class Output(NamedTuple):
    code: object
    out: str
    err: str

    @property
    def changes(self) -> list[tuple[str, str, str]]:
        """Returns (kind, topic without the prefix of the test, setting) of a plan in JSON."""
        changes = json.loads(self.out)["changes"]
        return [(change["change"], change["topic"].split(".")[-1], change["setting"]) for change in changes]


Run = Callable[..., Output]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> Output:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        reported = capsys.readouterr()
        return Output(caught.value.code, reported.out, reported.err)

    return run


class Place:
    """A pipeline's settings file and its topics folder, with unique names."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.name = f"p{uuid.uuid4().hex[:8]}"
        self.folder = folder
        (folder / "topics").mkdir()
        self.bootstrap = bootstrap

    def pipeline(self, name: str = "orders", **columns: str) -> Path:
        settings: dict[str, Any] = {
            "pipeline": f"{name}-{self.name}",
            "source": {"postgres": "postgresql://127.0.0.1:1/shop", "table": "public.outbox"},
            "outbox": {"columns": columns},
            "topics": {"folder": "topics"},
            "kafka": {
                "bootstrap": self.bootstrap,
                "offsets_topic": f"{self.name}.offsets",
                "dead_letter_topic": f"{self.name}.{name}-letters",
            },
        }
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps(settings))
        return file

    def topic(self, name: str, *lines: str) -> str:
        (self.folder / "topics" / f"{name}.yaml").write_text("\n".join([f"topic: {self.name}.{name}", *lines, ""]))
        return f"{self.name}.{name}"


@pytest.fixture
def place(tmp_path: Path, kafka: KafkaBroker) -> Place:
    return Place(tmp_path, kafka.bootstrap)


def test_topics_are_planned_then_created_and_then_as_declared(place: Place, kafka: KafkaBroker, run: Run) -> None:
    file, other = place.pipeline(), place.pipeline("billing")
    topic = place.topic(
        "sales", "match: {type: A}", "partitions: 2", "retention: 1d", "config: {cleanup.policy: delete}"
    )
    planned = run("topics", "plan", file, other, "--json")
    assert (planned.code, planned.changes) == (
        1,
        [("create", name, "") for name in ("billing-letters", "offsets", "orders-letters", "sales")],
    )
    refused = run("topics", "apply", file, other)
    assert (refused.code, "give --yes" in refused.err) == (2, True)
    assert topic not in kafka.admin().list_topics(timeout=10).topics, "nothing is made without a yes"
    applied = run("topics", "apply", file, other, "--yes")
    assert applied.code == 0, applied
    assert f"done: create {topic}" in applied.out
    again = run("topics", "plan", file, other)
    assert (again.code, "all topics are as declared" in again.out) == (0, True), again
    state = topic_states(kafka.admin(), [topic])[topic]
    assert (state.partitions, state.config["retention.ms"]) == (2, "86400000")
    assert run("topics", "apply", file, other).code == 0, "nothing to do needs no yes"


class Terminal(io.StringIO):
    """A terminal on which an answer is typed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 130)])
def test_apply_asks_for_confirmation_on_a_terminal(
    place: Place, kafka: KafkaBroker, run: Run, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    file = place.pipeline()
    topic = place.topic("sales", "match: {type: A}")
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
    reported = run("topics", "apply", file)
    assert (reported.code, "Make 3 changes?" in reported.out) == (code, True), reported
    assert (topic in kafka.admin().list_topics(timeout=10).topics) is (answer == "y")


def test_only_declared_settings_are_changed(place: Place, kafka: KafkaBroker, run: Run) -> None:
    file = place.pipeline()
    topic = place.topic("sales", "match: {type: A}", "config: {retention.ms: 1000, segment.bytes: 2000000}")
    assert run("topics", "apply", file, "--yes").code == 0
    place.topic(
        "sales", "match: {type: A}", "config: {retention.ms: 5000, min.cleanable.dirty.ratio: 1, preallocate: 'TRUE'}"
    )
    planned = run("topics", "plan", file, "--json")
    assert planned.changes == [
        ("set", "sales", "retention.ms"),
        ("set", "sales", "min.cleanable.dirty.ratio"),
        ("set", "sales", "preallocate"),
    ]
    assert run("topics", "apply", file, "--yes").code == 0
    assert run("topics", "plan", file).code == 0, "Kafka's spelling is understood"
    config = topic_states(kafka.admin(), [topic])[topic].config
    assert (config["retention.ms"], config["segment.bytes"]) == ("5000", "2000000")


def test_partitions_grow_only_on_request_and_never_shrink(place: Place, kafka: KafkaBroker, run: Run) -> None:
    file = place.pipeline()
    topic = place.topic("sales", "match: {type: A}", "partitions: 2", "replication: 1")
    assert run("topics", "apply", file, "--yes").code == 0
    place.topic("sales", "match: {type: A}", "partitions: 4", "replication: 1")
    planned = run("topics", "plan", file)
    assert planned.code == 1
    assert "Existing keys may move to other partitions" in planned.out
    held_back = run("topics", "apply", file, "--yes")
    assert (held_back.code, "needs --grow" in held_back.out) == (1, True)
    assert topic_states(kafka.admin(), [topic])[topic].partitions == 2
    assert run("topics", "apply", file, "--yes", "--grow").code == 0
    wait_until(lambda: topic_states(kafka.admin(), [topic])[topic].partitions == 4, 60, what="4 partitions")
    place.topic("sales", "match: {type: A}", "partitions: 3", "replication: 2")
    left = run("topics", "apply", file, "--yes", "--grow")
    assert left.code == 1
    assert "declare partitions: 4" in left.out
    assert "declare replication: 1" in left.out
    assert topic_states(kafka.admin(), [topic])[topic].partitions == 4


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(
    ("lines", "line", "reported"),
    [
        (["config:", "  retention.ms: 1000", "  segment.bytes: soon"], 5, "segment.bytes = soon"),
        (["config:", "  retention.ms: 1000", "  retension.ms: 1"], 5, "retension.ms = 1"),
        (["replication: 9"], 3, "replication"),
    ],
)
def test_a_setting_that_the_broker_rejects_is_reported_with_its_line(
    place: Place, run: Run, lines: list[str], line: int, reported: str, there: bool
) -> None:
    file = place.pipeline()
    if there:
        place.topic("sales", "match: {type: A}")
        assert run("topics", "apply", file, "--yes").code == 0
    topic = place.topic("sales", "match: {type: A}", *lines)
    if there and reported == "replication":
        assert run("topics", "plan", file).code == 1, "of a topic that exists it is not even tried"
        return
    for arguments in (("plan", file), ("apply", file, "--yes")):
        refused = run("topics", *arguments)
        assert refused.code == 2, refused
        assert f"sales.yaml:{line}: Kafka rejects {reported} for {topic}" in refused.err


def test_keys_go_to_the_partition_that_explain_names(place: Place, kafka: KafkaBroker, run: Run) -> None:
    """Uses the publisher's settings, including transactions."""
    file = place.pipeline()
    topic = place.topic("sales", "match: {type: A}", "partitions: 7")
    assert run("topics", "apply", file, "--yes").code == 0
    options = KafkaOptions(kafka.bootstrap, f"keys-{place.name}")
    producer = Producer(producer_config(options))
    producer.init_transactions(30)
    producer.begin_transaction()
    keys = [
        b"",
        b"\x00\xff",
        "schlüssel".encode(),
        *(f"order-{n}".encode()[: n % 12 + 1] + bytes([n]) for n in range(200)),
    ]
    for key in keys:
        producer.produce(topic, b"{}", key)
    producer.commit_transaction(30)
    watch = TopicTail(options, lambda name: name == topic, beginning=True)
    try:
        landed = {seen.key: seen.partition for _, seen in zip(keys, watch, strict=False)}
    finally:
        watch.close()
    # When reading, the client library returns None for an empty key.
    assert landed.pop(None if None in landed else b"") == partition_of(b"", 7)
    assert landed == {key: partition_of(key, 7) for key in keys if key}
    reported = json.loads(run("route", "explain", file, "--type", "A", "--key", "schlüssel", "--json").out)
    assert reported["partition"] == landed["schlüssel".encode()]
    assert "in Kafka" in reported["partitions"]


def test_route_explain_needs_no_server(tmp_path: Path, run: Run) -> None:
    place = Place(tmp_path, "127.0.0.1:1")
    file = place.pipeline(subject="subj")
    place.topic("stock", "match: {subject: ['rwa.stock.*']}", "key: tenant", "partitions: 3", "priority: 5")
    place.topic("rest", 'match: "*"')
    goods = ["--type", "Moved", "--subject", "rwa.stock.moved"]
    reported = run("route", "explain", file, *goods, "--column", "tenant=eu-1", "--key", "k")
    assert reported.code == 0, reported
    assert f"the rule of {place.name}.stock" in reported.out
    assert "eu-1, from column tenant" in reported.out
    assert f"partition  {partition_of(b'eu-1', 3)} (of 3 partitions, as declared)" in reported.out
    passed = json.loads(run("route", "explain", file, "--type", "Moved", "--key", "k", "--offline", "--json").out)
    assert passed["topic"] == f"{place.name}.rest"
    assert [(one["matched"], one["wins"]) for one in passed["tried"]] == [(False, False), (True, True)]
    assert "subject is NULL or missing" in passed["tried"][0]["why"]
    rejected = run("route", "explain", file, *goods, "--offline")
    assert (rejected.code, "becomes a dead letter" in rejected.out) == (1, True), "its key column is not there"
    assert run("route", "explain", file, "--type", "A", "--column", "tenant").code == 2
    assert run("route", "explain", file, "--type", "A", "--column", "type=B").code == 2


def test_an_unavailable_cluster_is_an_error(tmp_path: Path, run: Run) -> None:
    reported = run("topics", "plan", Place(tmp_path, "127.0.0.1:1").pipeline())
    assert (reported.code, "KafkaUnavailable" in reported.err) == (3, True)
