"""`tailrace demo` as a user runs it: correct verdicts, also for a faulty pipeline, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from confluent_kafka import Message
from pymongo import MongoClient

from helpers.stack import is_dead
from tailrace import cli
from tailrace.testkit.demo import service
from tailrace.testkit.demo.projection import TABLE, OrderSummaryProjection
from tailrace.testkit.oracle import Histories
from tailrace.testkit.stack import KafkaBroker, MongoServer, PostgresServer, wait_until
from tailrace.testkit.stack.kafka_local import JAVA_OPTIONS
from tailrace.testkit.stack.process import descendants
from tailrace.testkit.topic_reader import read_all

TIMEOUT = 90.0


@dataclass
class Run:
    """A demo with its own servers, its output in files, everything it writes in `folder`."""

    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self, *arguments: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
        environment = {**kept, JAVA_OPTIONS: os.environ.get(JAVA_OPTIONS, "")}
        (self.folder / "tmp").mkdir()
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tailrace", "demo", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**environment, "TMPDIR": str(self.folder / "tmp")},
            )

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    def says(self, text: str) -> None:
        wait_until(lambda: text in self.out + self.err or self.process.poll() is not None, TIMEOUT, what=repr(text))
        assert text in self.out + self.err, f"it ended with {self.process.returncode}:\n{self.out}{self.err}"

    def ended(self) -> int:
        return self.process.wait(TIMEOUT)

    def left_behind(self) -> list[str]:
        """Returns the run directories, which a reaper removes after its server has ended."""
        return [path.name for path in (self.folder / "tmp").iterdir()]


@pytest.fixture
def run() -> Iterator[Run]:
    # Not below pytest's folder, which the user that Postgres runs as may not enter.
    folder = Path(tempfile.mkdtemp(prefix="tailrace-test-demo-"))
    folder.chmod(0o711)
    run = Run(folder)
    yield run
    run.process.kill()
    run.process.wait()
    wait_until(lambda: not run.left_behind(), what="the end of the reapers")
    shutil.rmtree(folder)


def test_delivery_is_exactly_once_with_two_kills(run: Run) -> None:
    run.start("--json", "--seconds", "4", "--seed", "11", "--postgres", "18")
    assert run.ended() == 0, run.err
    reported: dict[str, Any] = json.loads(run.out)
    assert run.out == json.dumps(reported) + "\n"
    assert reported["ok"] is True
    assert (reported["kills"], reported["seed"]) == (4, 11)
    assert set(reported["pipelines"]) == {"orders", "users"}
    for name, pipeline in reported["pipelines"].items():
        assert pipeline["kills"] == 2
        assert min(pipeline["committed"], pipeline["rolled_back"], pipeline["dead_lettered"]) > 0
        assert pipeline["committed"] == pipeline["published"] + pipeline["dead_lettered"]
        assert pipeline["missing"] == pipeline["duplicated"] == pipeline["phantom"] == pipeline["out_of_order"] == 0
        latency = pipeline["latency"]
        assert latency["steady_events"] + latency["restart_events"] == pipeline["committed"]
        assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["longest_ms"]
        assert run.err.count(f"{name} connector killed (SIGKILL)") == 2
        assert run.err.count(f"{name} connector restarted") == 2
    assert reported["committed"] == sum(pipeline["committed"] for pipeline in reported["pipelines"].values())
    summary = reported["projections"]["order_summary"]
    assert summary["events"] == summary["applied"] == reported["pipelines"]["orders"]["published"]
    assert (summary["ok"], summary["wrong"], summary["kills"]) == (True, {}, 1)
    assert run.err.count("order_summary projection killed (SIGKILL)") == 1
    assert run.err.count("order_summary projection restarted") == 1
    assert run.left_behind() == []


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["starting", "Kafka are up", "writing 100", "projection killed"])
def test_ctrl_c_ends_everything(run: Run, moment: str) -> None:
    run.start("--seconds", "4")
    run.says(moment)
    pids = descendants(run.process.pid)
    run.process.send_signal(signal.SIGINT)
    assert run.ended() == 130
    assert run.err == "interrupted\n"
    wait_until(lambda: all(map(is_dead, pids)), what="the end of every process")
    wait_until(lambda: not run.left_behind(), what="the end of every folder")


@pytest.mark.slow
def test_nothing_is_left_after_sigkill(run: Run) -> None:
    run.start("--seconds", "4")
    run.says("on Kafka")
    pids = descendants(run.process.pid)
    run.process.kill()
    wait_until(lambda: all(map(is_dead, pids)), what="the end of every process")
    wait_until(lambda: not run.left_behind(), what="the end of every folder")


@pytest.mark.slow
def test_keep_runs_until_ctrl_c(run: Run) -> None:
    run.start("--seconds", "2", "--keep")
    run.says("Ctrl-C ends everything")
    assert "Exactly once and in order" in run.out
    (folder,) = (run.folder / "tmp").glob("tailrace-demo-*")
    orders, users = folder / "orders.yaml", folder / "users.yaml"
    assert f"tailrace tail {orders}" in run.out
    assert f"tailrace tail {users}" in run.out
    assert yaml.safe_load(orders.read_text())["source"]["postgres"] in run.out
    settings = yaml.safe_load(users.read_text())
    (address,) = re.findall(r"mongosh '(.*)'", run.out)
    with MongoClient[dict[str, Any]](address) as client:
        assert client.get_default_database()["outbox"].count_documents({"status": "pending"}) > 0
    (psql,) = re.findall(r"its rows +(.*)", run.out)
    *_, url, _, statement = shlex.split(psql)
    with psycopg.connect(url, autocommit=True) as connection:
        assert len(connection.execute(statement).fetchall()) == 10
        count = "SELECT sum(cardinality(events)) FROM order_summary.order_summary"
        (before,) = connection.execute(count).fetchall()
        wait_until(lambda: connection.execute(count).fetchall() > [before], 60, what="more in order_summary")
    bootstrap = settings["kafka"]["bootstrap"]
    for topic in ("shop.orders", "shop.users"):
        before = len(read_all(bootstrap, [topic]))
        wait_until(lambda name=topic, seen=before: len(read_all(bootstrap, [name])) > seen, 60, what=f"more on {topic}")
    pids = descendants(run.process.pid)
    run.process.send_signal(signal.SIGINT)
    assert run.ended() == 130
    wait_until(lambda: all(map(is_dead, pids)), what="the end of every process")
    assert run.left_behind() == []


@pytest.fixture
def others(
    postgres: PostgresServer, kafka: KafkaBroker, mongo: MongoServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Servers that are not the demo's: it must leave them unchanged."""
    monkeypatch.setenv(PostgresServer.VARIABLE, postgres.dsn())
    monkeypatch.setenv(KafkaBroker.VARIABLE, kafka.bootstrap)
    monkeypatch.setenv(MongoServer.VARIABLE, mongo.uri)
    before = traces(postgres, kafka, mongo)
    yield
    wait_until(lambda: traces(postgres, kafka, mongo) == before, what="the removal of everything the demo created")


@pytest.mark.slow
@pytest.mark.usefixtures("others")
def test_a_lost_event_and_one_applied_twice_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader that loses the last event of a topic simulates a connector that does."""

    def forgetful(bootstrap: str, topics: list[str]) -> list[Message]:
        return read_all(bootstrap, topics)[:-1]

    histories = OrderSummaryProjection.histories

    def applied_twice(summary: OrderSummaryProjection) -> Histories:
        with psycopg.connect(summary.orders.dsn) as connection:
            first = f"SELECT min(order_id) FROM {TABLE}"
            connection.execute(f"UPDATE {TABLE} SET events = events || events[1] WHERE order_id = ({first})")
        return histories(summary)

    monkeypatch.setattr(service, "read_all", forgetful)
    monkeypatch.setattr(OrderSummaryProjection, "histories", applied_twice)
    with pytest.raises(SystemExit) as caught:
        cli.main(["demo", "--json", "--seconds", "2"])
    assert caught.value.code == 1
    reported = json.loads(capsys.readouterr().out)
    assert reported["ok"] is False
    assert reported["missing"] == 4
    for pipeline in reported["pipelines"].values():
        assert pipeline["missing"] == len(pipeline["wrong"]["missing"]) == 2
    summary = reported["projections"]["order_summary"]
    assert summary["twice"] == len(summary["wrong"]["twice"]) == 1
    assert summary["phantom"] == len(summary["wrong"]["phantom"]) == 1, "applied, but lost to the reader of the topic"
    assert summary["missing"] == summary["out_of_order"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("others")
def test_without_faust_there_is_no_projection(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "faust", None)
    with pytest.raises(SystemExit) as caught:
        cli.main(["demo", "--json", "--seconds", "2"])
    assert caught.value.code == 0
    reported = capsys.readouterr()
    assert json.loads(reported.out)["projections"] == {}
    assert reported.err.count(".[faust]") == 1


def traces(postgres: PostgresServer, kafka: KafkaBroker, mongo: MongoServer) -> set[str]:
    """Returns databases, slots and topics, without those that Kafka and MongoDB create themselves."""
    with postgres.connect() as connection:
        names = connection.execute(
            "SELECT datname FROM pg_database UNION ALL SELECT slot_name FROM pg_replication_slots"
        ).fetchall()
    topics = kafka.admin().list_topics(timeout=10).topics
    with mongo.client() as client:
        databases = {name for name in client.list_database_names() if name not in ("admin", "config", "local")}
    return {str(name) for (name,) in names} | databases | {topic for topic in topics if not topic.startswith("__")}
