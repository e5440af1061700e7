"""The examples of the inbox: each runs to its end, and its verdict finds a consumer that ignores the inbox."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tailrace.testkit.stack import KafkaBroker, wait_until

ROOT = Path(__file__).parents[2]
TIMEOUT = 170.0
NAMES = ["inbox_kafka", "inbox_faststream"]
IMPATIENT = """
import sys
from examples import run

run.CATCH_UP_TIMEOUT = 20
sys.exit(run.main([sys.argv[1], "--seconds", "2", "--seed", "7"]))
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs_to_its_end_with_one_command(name: str) -> None:
    ended = python(ROOT, "-m", "examples.run", name, "--seconds", "4", "--seed", "7")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "consumer killed" in ended.stdout
    assert re.search(r"order-7-\d+ +\d+ events, .* EUR", ended.stdout), ended.stdout
    assert re.search(r"\d+ events, \d+ rows: the projection is what the topic says", ended.stdout), ended.stdout
    assert re.search(r"(\d+) records .*, 30 of them duplicates; \d+ markers: as it must be", ended.stdout), ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_consumer_that_ignores_the_inbox_is_reported(name: str, tmp_path: Path) -> None:
    for folder in ("examples", "schemas", "topics"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    app = tmp_path / "examples" / name / "app.py"
    source = app.read_text()
    assert source.count("if first:") == 1
    app.write_text(source.replace("if first:", "if True:"))
    ended = python(tmp_path, "-c", IMPATIENT, name)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert re.search(r"\d+ differ", ended.stdout), ended.stdout


def test_why_the_example_does_not_use_the_confluent_broker_of_faststream(kafka: KafkaBroker) -> None:
    """It repeats a failed event by a seek, and acknowledges others by a commit of everything that was polled."""
    topic = f"seek-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b"failed")
    producer.flush(30)
    settings = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, **settings})
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1), 60, what="the record")
    consumer.seek(TopicPartition(topic, 0, 0))
    committed = consumer.commit(asynchronous=False)
    consumer.close()
    assert committed
    assert [each.offset for each in committed] == [1]
