"""An agent without its database, without Kafka, or with code that blocks the event loop or never asks for events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.agent_apps import AgentHistory
from tailrace.testkit.stack import KafkaBroker, PostgresServer, ServerChoice

BLOCKS = """
import time

@app.agent(channel)
async def histories(stream):
    async for event in stream:
        async with event.once() as effects:
            await append(event, effects)
            time.sleep(3600)
{more}
"""
NEVER_ASKS = """
@app.agent(channel)
async def histories(stream):
    await asyncio.Event().wait()
    async for event in stream:
        event.skip()
{more}
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[AgentHistory]:
    """An agent with its own servers, which are killed."""
    with PostgresServer(choice=ServerChoice.LOCAL) as postgres, KafkaBroker(choice=ServerChoice.LOCAL) as kafka:
        made = AgentHistory(postgres, kafka, tmp_path)
        yield made
        made.close()


def some(history: AgentHistory) -> None:
    history.publish(*({"key": f"k-{n % 5}"} for n in range(30)))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["several tasks", "batches"])
def test_its_servers_die_and_come_back(own: AgentHistory, way: str) -> None:
    """No event is dead-lettered, the agent does not count as crashed, and the worker continues automatically."""
    own.use(way, "max_attempts=1")
    worker = own.start()
    some(own)
    own.caught_up()
    some(own)
    own.postgres.kill()
    some(own)
    worker.says('"blocked"', 120)
    own.postgres.start()
    own.caught_up()
    own.kafka.kill()
    own.kafka.start()
    some(own)
    own.caught_up(180)
    assert own.dead_letters() == []
    assert worker.running, worker.log
    assert "agent crashed" not in worker.log


@pytest.mark.slow
@pytest.mark.parametrize("agent", [BLOCKS, NEVER_ASKS], ids=["blocks", "never asks"])
def test_an_agent_without_progress_ends_the_worker(history: AgentHistory, agent: str) -> None:
    history.use(agent, "give_up=3")
    history.publish({"key": "k"})
    worker = history.start(wait=False)
    assert worker.ended(60) == 3, worker.log
    assert "ProjectionStalled" in worker.log
    assert history.state() == {}
    history.use("each")
    history.start()
    history.caught_up()
