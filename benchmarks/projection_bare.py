"""A minimal Faust worker, run by `faust worker`: it counts and acknowledges events."""

from __future__ import annotations

import faust
from faust.types import StreamT

from benchmarks.projection_task import Stopwatch, task

TASK = task()
app = faust.App(TASK.name, broker=f"kafka://{TASK.bootstrap}", store="memory://", topic_disable_leader=True)
watch = Stopwatch(TASK.file)


@app.agent(app.topic(TASK.topic, key_serializer="raw", value_serializer="raw"))
async def count(stream: StreamT[bytes]) -> None:
    seen = 0
    async for _ in stream:
        if seen == 0:
            watch.start()
        seen += 1
        if seen == TASK.events:
            watch.stop()
