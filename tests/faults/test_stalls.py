"""I10 and row 84 of the fault matrix: a pipeline that runs without progress ends as FAILED, with cause and remedy.

A pipeline that waits for a known reason is not stalled: a server that hangs makes it RETRYING, and an idle log or a
suspended process is nothing at all.
"""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from helpers.broken_kafka import HASTY
from helpers.command import read_status
from helpers.service import Connector, Service
from helpers.shop import Shop, close_shop, open_shop
from helpers.users import Users
from helpers.webhook import HandClock, Hook
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice, wait_until

BOUND = 5
START = """
import os, threading, time
def is_blocked():
    return os.path.exists(os.environ["BLOCK"])
{hook}
from tailrace.cli import main
main()
"""
# The reading thread waits forever in the middle of its work.
READER = """
from tailrace.pipeline import loop
process = loop.PipelineLoop._process
def blocked(self, chunk, batch):
    if is_blocked():
        threading.Event().wait()
    return process(self, chunk, batch)
loop.PipelineLoop._process = blocked
"""
# The publisher's thread waits forever where nothing limits it.
PUBLISHER = """
from tailrace.kafka import publisher
publish = publisher.Publisher._publish
def blocked(self, batch):
    if is_blocked():
        threading.Event().wait()
    publish(self, batch)
publisher.Publisher._publish = blocked
"""
# The source looks healthy and answers the server, but returns nothing.
SILENT = """
from tailrace.event import Chunk
from tailrace.sources.postgres.source import PostgresSource
read = PostgresSource.read
def silent(self, limit, limit_bytes, wait):
    if is_blocked():
        self.keep_alive()
        time.sleep(0.05)
        return Chunk([], self._transactions.position, False)
    return read(self, limit, limit_bytes, wait)
PostgresSource.read = silent
"""
MONGO_SILENT = """
from tailrace.event import Chunk
from tailrace.sources.mongo.source import MongoSource
read = MongoSource.read
last = []
def silent(self, limit, limit_bytes, wait):
    if is_blocked() and last:
        time.sleep(0.05)
        return Chunk([], last[-1], False)
    chunk = read(self, limit, limit_bytes, wait)
    last[:] = [chunk.position]
    return chunk
MongoSource.read = silent
"""
FILLER = "INSERT INTO filler SELECT repeat('x', 500) FROM generate_series(1, 1000)"


def start(service: Service, hook: str) -> tuple[Connector, Path]:
    """Starts a connector with this hook; creating the returned file blocks it."""
    script, block = service.folder / "hook.py", service.folder / "block"
    script.write_text(START.format(hook=hook))
    service.configure(limits={"stall_timeout": BOUND}, source={"link_timeout": 2})
    return service.start(program=[str(script)], BLOCK=str(block)), block


def lines(connector: Connector, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in connector.log.splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


@pytest.mark.parametrize(
    ("hook", "what"),
    [
        (READER, "reading thread"),
        pytest.param(PUBLISHER, "publishing thread", marks=pytest.mark.slow),
        pytest.param(SILENT, "stored no position", marks=pytest.mark.slow),
    ],
)
def test_a_stalled_pipeline_fails_and_continues_after_a_restart(
    shop: Shop, hook: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Hook(HandClock()) as webhook:
        shop.configure(dead_letters={"webhook": {"url": f"http://127.0.0.1:{webhook.port}/"}})
        shop.execute("CREATE TABLE filler (t text)")
        connector, block = start(shop, hook)
        writer = shop.writer()
        writer.transaction(rollback=False)
        assert shop.caught_up().ok
        block.touch()
        for _ in range(3):
            writer.transaction(rollback=False)
            shop.execute(FILLER)
        connector.failed("PipelineStalled")
        failure = lines(connector, "failed")[0]
        assert what in failure["what"], failure
        assert failure["why"]
        assert failure["remedy"]
        assert read_status(shop.file, capsys)["error"]["code"] == "PipelineStalled"
        assert [call["alert"] for call in webhook.calls] == ["stall"]
        assert webhook.calls[0]["remedy"] == failure["remedy"]
        block.unlink()
        again, _ = start(shop, hook)
        verdict = shop.caught_up()
        assert verdict.ok, (verdict, again.log)
        wait_until(lambda: [call["alert"] for call in webhook.calls] == ["stall", "recovery"], what="the recovery")
        assert "PipelineStalled" in webhook.calls[1]["what"]


def test_a_silent_change_stream_is_a_stall(users: Users) -> None:
    connector, block = start(users, MONGO_SILENT)
    users.writer().transaction(rollback=False)
    assert users.caught_up().ok
    block.touch()
    # A read that began before may still return the first of these.
    users.writer().start(rate=5)
    connector.failed("PipelineStalled")
    assert "stored no position" in lines(connector, "failed")[0]["what"]


def test_a_broker_that_hangs_is_no_stall(postgres: PostgresServer, tmp_path: Path) -> None:
    with KafkaBroker(properties=HASTY, choice=ServerChoice.LOCAL) as kafka:
        shop = open_shop(postgres, kafka, tmp_path)
        try:
            # Kafka's client waits three times as long as the bound before it gives up.
            shop.configure(
                kafka={"settings": {"transaction.timeout.ms": 20_000, "message.timeout.ms": 3 * BOUND * 1000}},
                limits={"stall_timeout": BOUND},
                source={"link_timeout": 2},
            )
            connector = shop.start()
            writer = shop.writer()
            writer.transaction(rollback=False)
            assert shop.caught_up().ok
            kafka.pause()
            try:
                writer.transaction(rollback=False)
                connector.says('"error": "KafkaUnavailable"')
            finally:
                kafka.resume()
            verdict = shop.caught_up()
            assert verdict.ok, (verdict, connector.log)
            assert connector.running, connector.log
            assert "PipelineStalled" not in connector.log
        finally:
            close_shop(shop)


def test_a_database_that_hangs_is_no_stall(kafka: KafkaBroker, tmp_path: Path) -> None:
    with PostgresServer("16", choice=ServerChoice.LOCAL) as postgres:
        shop = open_shop(postgres, kafka, tmp_path)
        try:
            shop.configure(limits={"stall_timeout": BOUND}, source={"link_timeout": 2})
            connector = shop.start()
            writer = shop.writer()
            postgres.pause()
            try:
                connector.says('"error": "SourceUnavailable"')
                wait_until(lambda: len(connector.waits) > 1, what="another attempt")
            finally:
                postgres.resume()
            writer.transaction(rollback=False)
            verdict = shop.caught_up()
            assert verdict.ok, (verdict, connector.log)
            assert "PipelineStalled" not in connector.log
        finally:
            close_shop(shop)


@pytest.mark.slow
def test_an_idle_or_suspended_pipeline_is_no_stall(shop: Shop) -> None:
    """The bound passes without an event, then while the process is suspended, and while only others write."""
    shop.execute("CREATE TABLE filler (t text)")
    shop.configure(limits={"stall_timeout": BOUND}, source={"link_timeout": 2})
    connector = shop.start()
    passing(BOUND + 2)
    connector.process.send_signal(signal.SIGSTOP)
    passing(BOUND + 2)
    connector.process.send_signal(signal.SIGCONT)
    before = shop.positions()[-1].lsn
    for _ in range(BOUND + 2):
        shop.execute(FILLER)
        passing(1)
    wait_until(lambda: shop.positions()[-1].lsn > before, what="a position behind the other writes")
    shop.writer().transaction(rollback=False)
    verdict = shop.caught_up()
    assert verdict.ok, (verdict, connector.log)
    assert connector.running, connector.log
    assert "PipelineStalled" not in connector.log


def passing(seconds: float) -> None:
    """Lets time pass in which nothing may happen."""
    threading.Event().wait(seconds)
