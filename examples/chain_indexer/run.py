"""Runs the chain indexer on a real broker: killed around commits, rolled back by forks, and compared with a fold.

Started by `python -m examples.run chain_indexer`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import uuid
from contextlib import ExitStack, closing
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from examples.chain_indexer.app import CAGE, TOPIC
from examples.chain_indexer.generator import ChainGenerator
from examples.chain_indexer.oracle import differences, final_chain, fold, read_index
from tailrace.failpoints import PROJECTION_APPLIED, PROJECTION_COMMITTED
from tailrace.testkit.demo.display import Display, display_for
from tailrace.testkit.demo.process import TailraceProcess
from tailrace.testkit.stack import KafkaBroker, ServerChoice, StackError, wait_until
from tailrace.testkit.stack.paths import new_run_dir
from tailrace.testkit.topic_reader import read_all

ROOT = Path(__file__).parents[2]
GROUP = "chain-indexer.projections"
EVENTS_PER_SECOND = 30
KILLS = {PROJECTION_APPLIED: "before the commit of a block", PROJECTION_COMMITTED: "after the commit of a block"}
TIMEOUT = 120.0


class IndexerProcess(TailraceProcess):
    """The worker; it may kill itself at a failpoint."""

    @property
    def exit_code(self) -> int | None:
        return None if self._process.running else self._process.exit_code


class ChainRun:
    """A topic with the events of a chain, and the worker that indexes it."""

    def __init__(self, kafka: KafkaBroker, folder: Path, show: Display, *, seed: int) -> None:
        self._kafka = kafka
        self._folder = folder
        self._index = folder / "index"
        self._show = show
        self._generator = ChainGenerator(CAGE, seed)
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "log_level": 0})
        self._published = 0

    def run(self, seconds: float) -> int:
        """Runs the example; returns the exit code."""
        self._kafka.create_topic(TOPIC, 1, {"retention.ms": "-1"})
        count = max(30, int(seconds * EVENTS_PER_SECOND))
        for point, when in KILLS.items():
            self._publish(count // 3)
            self._run_until_killed(f"{point}:{count // 6}")
            self._show.note(f"worker killed {when} (SIGKILL)", alarm=True)
        self._publish(count - 2 * (count // 3))
        with closing(self._worker()) as worker:
            worker.start()
            wait_until(
                lambda: worker.ready and self._committed() >= self._published, TIMEOUT, what="the worker to catch up"
            )
            worker.stop()
        return self._compare()

    def _run_until_killed(self, failpoint: str) -> None:
        with closing(self._worker(TAILRACE_KILL=failpoint)) as worker:
            worker.start()
            wait_until(lambda: worker.exit_code is not None, TIMEOUT, what="the worker to be killed")
            if worker.exit_code != -signal.SIGKILL:
                raise worker.failure(f"the worker was not killed, it ended with {worker.exit_code}")

    def _worker(self, **environment: str) -> IndexerProcess:
        return IndexerProcess(
            "worker",
            new_run_dir("example", None),
            ["project", "examples.chain_indexer.app:app"],
            ready_event="reading",
            environment={
                "KAFKA": f"kafka://{self._kafka.bootstrap}",
                "CHAIN_INDEX": str(self._index),
                "PYTHONPATH": str(ROOT),
                **environment,
            },
        )

    def _publish(self, count: int) -> None:
        rollbacks = 0
        for kind, data in self._generator.events(count):
            headers: dict[str, str | bytes | None] = {"id": str(uuid.uuid4()), "type": kind}
            self._producer.produce(TOPIC, data.model_dump_json().encode(), b"chain", headers=headers)
            self._published += 1
            rollbacks += kind == "RollBackward"
        if self._producer.flush(TIMEOUT):
            raise StackError("Kafka does not accept the blocks")
        tip = self._generator.model.tip
        self._show.note(
            f"{count} events published, {rollbacks} of them rollbacks; the chain has {len(self._generator.blocks)} "
            f"blocks up to slot {tip.slot}"
        )

    def _committed(self) -> int:
        consumer = Consumer({"bootstrap.servers": self._kafka.bootstrap, "group.id": GROUP})
        try:
            [found] = consumer.committed([TopicPartition(TOPIC, 0)], timeout=30)
        finally:
            consumer.close()
        return int(found.offset)

    def _compare(self) -> int:
        model, blocks = self._generator.model, final_chain(read_all(self._kafka.bootstrap, [TOPIC]))
        index = asyncio.run(read_index(self._index))
        wrong = differences(index, model)
        folded = asyncio.run(fold(self._folder / "fold", blocks))
        for family, values in folded.items():
            other = index[family]
            bad = sum(values.get(key) != other.get(key) for key in values.keys() | other.keys())
            self._show.note(f"  {family:<11} {len(other):>5} keys{f', {bad} differ' if bad else ''}", alarm=bool(bad))
            wrong += [family] if bad else []
        verdict = f"different: {', '.join(wrong)}" if wrong else "every byte is that of a fold from the start"
        self._show.note(
            f"{self._published} events, {len(blocks)} blocks, {len(model.tokens)} tokens: {verdict}", alarm=bool(wrong)
        )
        return 1 if wrong else 0


def run(seconds: float, seed: int) -> int:
    with ExitStack() as stack:
        show = stack.enter_context(closing(display_for(sys.stdout)))
        kafka = stack.enter_context(KafkaBroker(choice=ServerChoice.LOCAL, progress=show.busy))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-chain-"))
        show.note("Kafka runs; blocks are published by a generator in place of a node")
        return ChainRun(kafka, Path(folder), show, seed=seed).run(seconds)
