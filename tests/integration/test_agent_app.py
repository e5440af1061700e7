"""One app on a real Kafka with everything: projection, agents of events, ordinary Faust agents, tables, timers, tasks.

Ordinary agents are Faust's: its own consumer reads for them, in the group of the app's name.
"""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from helpers.agent_apps import AgentHistory
from tailrace.testkit.stack import KafkaBroker, PostgresServer, wait_until

EVERYTHING = """
from tailrace.projections import Projection

@app.agent(channel)
async def histories(stream):
    async for event in stream:
        async with event.once() as effects:
            await append(event, effects)

@app.agent(app.events({topic!r}, store=store, name={name!r} + "-counts"))
async def counts(stream):
    async for batch in stream.take(50, within=0.01):
        async with batch.once() as effects:
            for event in batch:
                await effects.execute("CREATE TABLE IF NOT EXISTS counts (key text PRIMARY KEY, events integer)")
                await effects.execute(
                    "INSERT INTO counts VALUES (%s, 1) ON CONFLICT (key) DO UPDATE SET events = counts.events + 1",
                    [event.key.decode()],
                )

declared = Projection(app, {topic!r}, name={name!r} + "-declared", store=PostgresStore({dsn!r}, schema={schema!r} +
    "_declared", tables="CREATE TABLE IF NOT EXISTS seen (id text PRIMARY KEY)"))

@declared.on()
async def see(event, effects):
    effects.upsert("seen", {{"id": event.id}}, {{}})

totals = app.Table("totals", default=int, partitions=3)

@app.agent(app.topic({topic!r}, key_type=bytes, value_type=bytes))
async def same_topic(stream):
    async for key, value in stream.items():
        totals[key.decode()] += 1

def note(name, text):
    with open(name, "a") as file:
        file.write(text + "\\n")

@app.agent(app.topic({topic!r} + ".other", value_type=bytes))
async def other_topic(stream):
    async for value in stream:
        note("other", value.decode())

@app.timer(0.2)
async def tick():
    note("ticks", "tick")

@app.task
async def once_at_the_start():
    note("tasks", "started")

@app.page("/totals/")
class Totals(__import__("faust").web.View):
    async def get(self, request):
        return self.json({{key: totals[key] for key in totals.keys()}})
{more}
"""


@pytest.fixture
def run(postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path) -> Iterator[AgentHistory]:
    made = AgentHistory(postgres, kafka, tmp_path)
    kafka.create_topic(f"{made.topic}.other", 3)
    yield made
    made.close()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def noted(run: AgentHistory, name: str) -> list[str]:
    file = run.folder / name
    return file.read_text().split() if file.exists() else []


def counted(run: AgentHistory) -> dict[str, int]:
    return dict(run.execute(f"SELECT key, events FROM {run.name}.counts"))


@pytest.mark.slow
def test_everything_in_one_app(run: AgentHistory) -> None:
    port = free_port()
    run.use(EVERYTHING, app_settings=f', web_enabled=True, web_bind="127.0.0.1", web_port={port}')
    producer = Producer({"bootstrap.servers": run.kafka.bootstrap, "log_level": 0})
    for number in range(6):
        producer.produce(f"{run.topic}.other", f"{number}")
    producer.flush(30)
    run.publish(*({"key": f"o-{n % 5}"} for n in range(40)))
    worker = run.start()
    run.caught_up()

    def totals() -> dict[str, int]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/totals/", timeout=10) as answer:
            found: dict[str, int] = json.load(answer)
            return found

    def everything_has_happened() -> bool:
        expected = {key: len(ids) for key, ids in run.fold().items()}
        # Faust's table gets each event at least once: a restart may count some again.
        found = totals()
        return (
            counted(run) == expected
            and all(found.get(key, 0) >= count for key, count in expected.items())
            and run.execute(f"SELECT count(*) FROM {run.name}_declared.seen") == [(sum(expected.values()),)]
            and set(noted(run, "other")) == {str(n) for n in range(6)}
            and len(noted(run, "ticks")) > 2
        )

    wait_until(everything_has_happened, 90, what="all parts of the app")
    listening = [
        each.laddr.ip
        for each in psutil.Process(worker.process.pid).net_connections("inet")
        if each.status == psutil.CONN_LISTEN
    ]
    assert set(listening) == {"127.0.0.1"}
    assert worker.stop() == 0, worker.log
    run.publish(*({"key": f"o-{n % 5}"} for n in range(10)))
    second = run.start()
    run.caught_up()
    wait_until(everything_has_happened, 90, what="the table, from its changelog, and the new events")
    assert noted(run, "tasks") == ["started", "started"]
    assert second.stop() == 0, second.log


ORDINARY = """
@app.agent(channel)
async def histories(stream):
    async for event in stream:
        async with event.once() as effects:
            await append(event, effects)

@app.agent(app.topic({topic!r} + ".other", value_type=bytes))
async def other_topic(stream):
    async for value in stream:
        if value == b"bad":
            raise ValueError("this one fails")
{more}
"""


@pytest.mark.slow
def test_an_ordinary_agent_that_crashes_repeatedly_still_ends_the_worker(run: AgentHistory) -> None:
    run.use(ORDINARY)
    worker = run.start()
    producer = Producer({"bootstrap.servers": run.kafka.bootstrap, "log_level": 0})
    for _ in range(4):
        producer.produce(f"{run.topic}.other", b"bad", partition=0)
    producer.flush(30)
    assert worker.ended(60) == 3, worker.log
    assert "AgentCrashed: " in worker.log


RETURNS = """
@app.agent(channel)
async def histories(stream):
    async for event in stream:
        async with event.once() as effects:
            await append(event, effects)
        break
{more}
"""
UNSETTLED = """
@app.agent(channel)
async def histories(stream):
    async for event in stream:
        pass
{more}
"""
COMMITS = """
@app.agent(channel)
async def histories(stream):
    async for event in stream:
        async with event.once() as effects:
            await append(event, effects)
            await effects.execute("COMMIT")
{more}
"""
CRASHES = """
@app.agent(channel)
async def histories(stream):
    raise ValueError("at the start")
    async for event in stream:
        event.skip()
{more}
"""


@pytest.mark.parametrize(
    ("agent", "code", "error", "applied"),
    [
        (RETURNS, 3, "AgentEnded", True),
        (UNSETTLED, 2, "EventNotSettled", False),
        (COMMITS, 2, "TransactionEnded", False),
        (CRASHES, 3, "AgentCrashed", False),
    ],
    ids=["returns", "unsettled", "commits", "crashes"],
)
def test_an_agent_that_cannot_work_ends_the_worker(
    run: AgentHistory, agent: str, code: int, error: str, applied: bool
) -> None:
    run.use(agent)
    run.publish({"key": "k"}, {"key": "k"})
    worker = run.start(wait=False)
    assert worker.ended(60) == code, worker.log
    assert f"{error}: " in worker.log
    assert bool(run.state()) is applied
    assert run.dead_letters() == []
