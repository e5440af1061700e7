"""Commit-to-consumer latency at a steady rate of single-row transactions, seen by a `read_committed` consumer."""

from __future__ import annotations

import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from benchmarks.processes import Connector
from tailrace.testkit.stack import PostgresServer

PGBENCH = """INSERT INTO outbox VALUES (gen_random_uuid(), 'order', 'order-' || (random() * 5000)::int, 'OrderPlaced',
jsonb_build_object('order', 'o', 'customer', 'c', 'amount', 1.25, 'currency', 'EUR', 'status', 'placed', 'revision', 1,
'note', repeat('x', 100)));"""


@dataclass(frozen=True, slots=True)
class Latency:
    events: int
    rate: float
    p50_ms: float
    p99_ms: float


def pgbench(server: PostgresServer, dsn: str, script: Path, *, rate: int, seconds: int, clients: int = 4) -> list[str]:
    """Returns the command that commits single rows at `rate`."""
    assert server.bin_dir is not None
    script.write_text(PGBENCH.replace("\n", " "))
    return [
        str(server.bin_dir / "pgbench"), "-n", "-f", str(script), "-R", str(rate), "-c", str(clients), "-j", "1",
        "-T", str(seconds), dsn,
    ]  # fmt: skip


def measure(writing: list[str], file: Path, bootstrap: str, topic: str) -> Latency:
    """Measures while `writing` runs. A record's timestamp is its commit time, by the same clock as the consumer's."""
    connector = Connector(file)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "latency",
            "isolation.level": "read_committed",
            "socket.nagle.disable": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in partitions}
        consumer.assign([TopicPartition(topic, p, end) for p, end in ends.items()])
        writer = subprocess.Popen(writing, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found: list[float] = []
        began = time.monotonic()
        quiet_since = None
        while quiet_since is None or time.monotonic() - quiet_since < 1:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(time.time() * 1000 - message.timestamp()[1])
                quiet_since = None
            if writer.poll() is not None and quiet_since is None:
                quiet_since = time.monotonic()
        # Kafka's JVM takes about a minute of small transactions to compile their code: a commit takes 50 ms at first
        # and 5 ms in the end. The latency of a pipeline that has been running is wanted, so only the last third counts.
        steady = found[len(found) * 2 // 3 :]
        cuts = statistics.quantiles(steady, n=100)
        return Latency(len(steady), len(found) / max(1.0, time.monotonic() - began - 1), cuts[49], cuts[98])
    finally:
        consumer.close()
        connector.stop()
