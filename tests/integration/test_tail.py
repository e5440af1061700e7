"""`tailrace tail`: prints published events as consumers see them, with filters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from helpers.shop import Shop
from tailrace.cli import main
from tailrace.testkit.stack import wait_until

VALID = '{"order": "a", "revision": 1, "amount": 1, "currency": "EUR"}'
INVALID = '{"order": "a", "revision": 1, "amount": "much", "currency": "EUR"}'

Tail = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def tail(shop: Shop, capsys: pytest.CaptureFixture[str]) -> Tail:
    """Reads from the beginning until the limit."""

    def read(limit: int, *arguments: str) -> list[dict[str, Any]]:
        with pytest.raises(SystemExit) as caught:
            main(["tail", str(shop.file), "--from-beginning", "--json", "--limit", str(limit), *arguments])
        assert caught.value.code == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return read


class Live:
    """A `tailrace tail` process that has begun to watch."""

    def __init__(self, folder: Path, file: Path, *arguments: str) -> None:
        self.out, self.err = folder / "tail.out", folder / "tail.err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tailrace", "tail", str(file), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        wait_until(lambda: "watching" in self.err.read_text() or self.process.poll() is not None, 60, what="tail")
        assert self.process.poll() is None, self.err.read_text()

    @property
    def lines(self) -> list[str]:
        return self.out.read_text().splitlines()

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


def test_events_are_printed_with_all_their_parts(shop: Shop, tail: Tail) -> None:
    shop.start()
    event = shop.insert(VALID, key="order-1")
    (seen,) = tail(1)
    assert (seen["topic"], seen["type"], seen["key"], seen["id"]) == (shop.topic, "OrderPlaced", "order-1", event)
    assert seen["payload"] == json.loads(VALID)
    assert seen["time"].endswith("Z")
    assert seen["headers"]["id"] == event
    assert (seen["offset"], "dead_letter" in seen) == (0, False)


def test_filters_take_shell_patterns(shop: Shop, tail: Tail) -> None:
    shop.start()
    first = shop.insert(VALID, key="a-1")
    shop.insert(VALID, kind="OrderChanged", key="a-2")
    third = shop.insert(VALID, key="b-1")
    last = shop.insert(VALID, kind="OrderChanged", key="b-2")
    wait_until(lambda: len(shop.published()) == 4, 60, what="four events")
    assert {seen["id"] for seen in tail(2, "--type", "*Placed")} == {first, third}
    assert [seen["id"] for seen in tail(1, "--type", "OrderChanged", "--key", "b-*")] == [last]
    assert {seen["id"] for seen in tail(2, "--key", "a-1", "--key", "b-2")} == {first, last}


def test_dead_letters_are_printed_only_on_request(shop: Shop, tail: Tail, capsys: pytest.CaptureFixture[str]) -> None:
    shop.start()
    bad, good = shop.insert(INVALID), shop.insert(VALID)
    assert [seen["id"] for seen in tail(1)] == [good]
    letters = [seen for seen in tail(2, "--dead-letters") if "dead_letter" in seen]
    assert [seen["id"] for seen in letters] == [bad]
    assert letters[0]["dead_letter"]["reason"] == "schema_validation_failed"
    assert "amount" in letters[0]["dead_letter"]["explanation"]
    with pytest.raises(SystemExit):
        main(["tail", str(shop.file), "--from-beginning", "--limit", "2", "--dead-letters"])
    lines = capsys.readouterr().out.splitlines()
    (letter,) = [line for line in lines if "DEAD LETTER" in line]
    assert "schema_validation_failed: " in letter
    assert bad in letter


def test_payloads_can_be_omitted(shop: Shop, tail: Tail, capsys: pytest.CaptureFixture[str]) -> None:
    shop.start()
    shop.insert(VALID)
    (seen,) = tail(1, "--no-payload")
    assert "payload" not in seen
    with pytest.raises(SystemExit):
        main(["tail", str(shop.file), "--from-beginning", "--limit", "1", "--no-payload"])
    assert "currency" not in capsys.readouterr().out


def test_new_events_and_topics_are_followed(shop: Shop) -> None:
    """The topic of the template does not exist at first. Earlier records are not shown."""
    (shop.folder / "topics" / "orders.yaml").unlink()
    shop.configure(topics={"template": f"{shop.name}.{{aggregate}}.{{type}}"})
    shop.start()
    shop.insert(VALID)
    topic = f"{shop.name}.order.OrderPlaced"
    wait_until(lambda: topic in shop.kafka.admin().list_topics(timeout=10).topics, 60, what="the first topic")
    wait_until(lambda: len(shop.positions()) > 1, 60, what="the first event")
    live = Live(shop.folder, shop.file)
    second, third = shop.insert(VALID), shop.insert(VALID, kind="OrderChanged")
    wait_until(lambda: len(live.lines) >= 2, 60, what=f"two lines: {live.err.read_text()}")
    assert live.end() == 130
    assert sorted(line.split()[4] for line in live.lines) == sorted([second, third])
    assert any(f" {shop.name}.order.OrderChanged[" in line for line in live.lines)


def test_uncommitted_records_and_those_of_others_are_not_shown(shop: Shop, tail: Tail) -> None:
    shop.start().stop()
    stranger = Producer({"bootstrap.servers": shop.kafka.bootstrap, "transactional.id": f"{shop.name}-stranger"})
    stranger.init_transactions(20)
    stranger.begin_transaction()
    stranger.produce(shop.topic, b"aborted", b"k")
    stranger.flush(10)
    stranger.abort_transaction(20)
    shop.start()
    event = shop.insert(VALID)
    assert [seen["id"] for seen in tail(1)] == [event]


def test_values_that_are_not_json_or_have_control_characters(
    shop: Shop, tail: Tail, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.start().stop()
    producer = Producer({"bootstrap.servers": shop.kafka.bootstrap})
    for value in (b"\x1b[2Jtext", b"\xff\xfe", b"1e999", None):
        producer.produce(shop.topic, value, b"key\n", partition=0)
    producer.flush(10)
    payloads = [seen["payload"] for seen in tail(4)]
    assert payloads == ["\x1b[2Jtext", {"base64": "//4="}, "1e999", None]
    with pytest.raises(SystemExit):
        main(["tail", str(shop.file), "--from-beginning", "--limit", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "\x1b" not in "".join(lines)
    assert lines[3].endswith("(null)")


def test_an_unavailable_kafka_is_an_error(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.configure(kafka={"bootstrap": "127.0.0.1:1"})
    with pytest.raises(SystemExit) as caught:
        main(["tail", str(shop.file)])
    assert caught.value.code == 3
    assert "KafkaUnavailable" in capsys.readouterr().err
