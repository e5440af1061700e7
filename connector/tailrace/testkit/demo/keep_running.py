"""`--keep`: everything goes on, slowly, for a person to look around in."""

from __future__ import annotations

import shlex
import time
from contextlib import ExitStack

from tailrace.testkit.demo.display import Display
from tailrace.testkit.demo.environment import DemoEnvironment
from tailrace.testkit.demo.projection_process import MODULE, OrderSummaryProjection
from tailrace.testkit.demo.service import Service
from tailrace.testkit.stack import wait_until
from tailrace.testkit.workload.writer import Mix

RATE = 5.0
"""Transactions a second, of each service: slow enough to read along."""
KEYS = 20
LOOK_SECONDS = 0.5


def keep_running(scene: DemoEnvironment, show: Display, *, seed: int) -> None:
    """Runs connectors, projections and writers until Ctrl-C."""
    processes = [*(service.connector for service in scene.services), *(each.process for each in scene.projections)]
    for process in processes:
        process.start()
    wait_until(lambda: all(process.ready for process in processes), 30, what="the start of all processes")
    writers = [service.writer(seed=seed + 1, keys=KEYS, mix=Mix()) for service in scene.services]
    with ExitStack() as last:
        for writer in writers:
            last.callback(writer.stop)
            writer.start(rate=RATE)
        show.say(instructions(scene))
        while all(process.ready for process in processes) and all(writer.error is None for writer in writers):
            time.sleep(LOOK_SECONDS)


def instructions(scene: DemoEnvironment) -> list[str]:
    """How to connect, look and stop."""
    topics = [service.topic for service in scene.services]
    return [
        "",
        f"Everything runs on, now with {RATE:.0f} transactions a second of each service. In another terminal:",
        *(line for service in scene.services for line in _service(service)),
        *(line for projection in scene.projections for line in _projection(projection)),
        "",
        "as any consumer sees it",
        f"  kcat -C -b {scene.bootstrap} -X isolation.level=read_committed -t {topics[0]}",
        *(
            line
            for topic in topics
            for line in (
                f"  kafka-console-consumer.sh --bootstrap-server {scene.bootstrap} --topic {topic} \\",
                "    --isolation-level read_committed --from-beginning",
            )
        ),
        "",
        f"the files: {scene.folder} (pipelines and their logs, schemas/, topics/)",
        "",
        "Ctrl-C ends everything and removes the folder.",
    ]


def _service(service: Service) -> list[str]:
    file = shlex.quote(str(service.connector.file))
    return [
        "",
        f"the {service.NAME}, on {service.DATABASE}",
        f"  watch the events   tailrace tail {file}",
        f"  where it stands    tailrace status {file}",
        f"  dead letters       tailrace dlq list {file}",
        f"  the outbox         {service.client}",
    ]


def _projection(projection: OrderSummaryProjection) -> list[str]:
    return [
        "",
        f"the projection {projection.NAME}, of {projection.orders.topic} into {projection.orders.DATABASE}",
        f"  its rows           {projection.client}",
        f"  its code           {MODULE}",
    ]
