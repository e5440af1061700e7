"""A Faust agent next to a projection: crashes are logged, and repeated crashes end the worker."""

from __future__ import annotations

from confluent_kafka import Producer

from helpers.projection import Projected

AGENT = """
@app.agent(app.topic({topic!r}))
async def other(stream):
    async for value in stream:
        if value == b"bad":
            raise ValueError("this one fails")
"""


def test_an_agent_that_crashes_repeatedly_ends_the_worker(projected: Projected) -> None:
    topic = f"{projected.topic}.other"
    projected.kafka.create_topic(topic)
    projected.configure(more=AGENT.format(topic=topic))
    worker = projected.start()
    producer = Producer({"bootstrap.servers": projected.kafka.bootstrap})
    producer.produce(topic, b"bad")
    assert producer.flush(20) == 0
    worker.says('"agent crashed"')
    assert worker.running, "once is not reason enough: Faust restarts it"
    for _ in range(4):
        producer.produce(topic, b"bad")
    assert producer.flush(20) == 0
    assert worker.ended() == 3, worker.log
    assert f"AgentCrashed: the agent app_{projected.name}.other crashed 3 times" in worker.log
