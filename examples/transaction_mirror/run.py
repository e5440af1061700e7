"""Runs the node on a real broker and a real MongoDB: killed, without MongoDB for a while, confirmed, and compared.

Started by `python -m examples.run transaction_mirror`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from examples.transaction_mirror.document import INDEXES
from examples.transaction_mirror.node import CONFIRMATIONS
from examples.transaction_mirror.oracle import differences
from examples.transaction_mirror.settings import ExternalDbSettings, flags_of
from tailrace.testkit.demo.display import Display, display_for
from tailrace.testkit.stack import KafkaBroker, MongoServer, ServerChoice, StackError, wait_until
from tailrace.testkit.stack.paths import new_run_dir
from tailrace.testkit.stack.process import LocalProcess

ROOT = Path(__file__).parents[2]
CHAIN = "sepolia"
PER_SECOND = 150
BLOCK = 20
"""Transactions per confirmed block."""
DELAY_SECONDS, TICK_SECONDS = 2, 1
"""Instead of a day and five minutes."""
TIMEOUT = 120.0


class Node:
    """The process of the node, which can be killed and started again."""

    def __init__(self, folder: Path, kafka: KafkaBroker, settings: ExternalDbSettings, seed: int, count: int) -> None:
        self.data = folder / "node"
        self._command = [
            *(sys.executable, "-m", "examples.transaction_mirror.node"),
            *("--data", str(self.data), "--chain-id", CHAIN, "--kafka", kafka.bootstrap),
            *("--seed", str(seed), "--transactions", str(count), "--rate", str(PER_SECOND), *flags_of(settings)),
        ]
        self._process = LocalProcess("node", new_run_dir("example", None), stop_signal=signal.SIGTERM)

    def start(self) -> None:
        (self.data / "metrics.port").unlink(missing_ok=True)
        self._process.launch(self._command, {**os.environ, "PYTHONPATH": str(ROOT)})

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        self._process.stop(TIMEOUT)

    def close(self) -> None:
        self._process.close()

    def accepted(self) -> set[str]:
        if not self._process.running and self._process.exit_code not in (0, -signal.SIGKILL):
            raise self._process.failure(f"the node ended by itself ({self._process.exit_code})")
        file = self.data / "mempool.txt"
        return set(file.read_text().split()) if file.exists() else set()

    @property
    def has_submitted(self) -> bool:
        return self._process.log.read_text().count("node submitted") > 0

    def metrics(self) -> dict[str, float]:
        port = self.data / "metrics.port"
        if not port.exists() or not port.read_text():
            return {}
        with urllib.request.urlopen(f"http://127.0.0.1:{port.read_text()}/metrics", timeout=10) as answer:
            found = re.findall(r"^external_db_(\w+) (\S+)$", answer.read().decode(), re.MULTILINE)
        return {name: float(value) for name, value in found}


class MirrorRun:
    def __init__(self, kafka: KafkaBroker, mongo: MongoServer, folder: Path, show: Display, seed: int, n: int) -> None:
        self._kafka, self._mongo, self._show, self._seed, self._count = kafka, mongo, show, seed, n
        self._settings = ExternalDbSettings(
            enabled=True,
            mongodb_uri=mongo.uri,
            database=f"madara_{CHAIN}",
            flush_interval_ms=200,
            retention_secs=DELAY_SECONDS,
            retention_tick_secs=TICK_SECONDS,
            retry_backoff_ms=200,
            retry_backoff_max_ms=1000,
        )
        self.node = Node(folder, kafka, self._settings, seed, n)
        self._wrong: list[str] = []

    def run(self) -> int:
        """Runs the example; returns the exit code."""
        self._kafka.create_topic(CONFIRMATIONS, 1, {"retention.ms": "-1"})
        self.node.start()
        self._wait_for(self._count // 3)
        self.node.kill()
        self._show.note("node killed (SIGKILL)", alarm=True)
        self._mongo.stop()
        self.node.start()
        self._wait_for(2 * self._count // 3)
        waiting = self.node.metrics()["outbox_size"]
        self._show.note(f"MongoDB is away: transactions are accepted, {waiting:.0f} wait in the outbox", alarm=True)
        self._check(waiting > 0, "no transaction waits in the outbox")
        self._mongo.start()
        wait_until(lambda: self.node.has_submitted, TIMEOUT, what="all transactions to be submitted")
        wait_until(lambda: self.node.metrics()["outbox_size"] == 0, TIMEOUT, what="the outbox to be empty")
        accepted = self.node.accepted()
        self._compare(accepted)
        self._retain(accepted)
        for name, value in self.node.metrics().items():
            if not name.startswith("write_latency_seconds_bucket") and not name.endswith("created"):
                self._show.note(f"  external_db_{name:<32} {value:,.3f}".rstrip("0").rstrip("."))
        self.node.stop()
        verdict = "; ".join(self._wrong) or "accepted, mirrored, confirmed, deleted: as it must be"
        self._show.note(f"{len(accepted)} transactions: {verdict}", alarm=bool(self._wrong))
        return 1 if self._wrong else 0

    def _wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.node.accepted()) >= count, TIMEOUT, what=f"{count} accepted transactions")
        wait_until(lambda: bool(self.node.metrics()), TIMEOUT, what="the node's metrics")
        self._show.note(f"{len(self.node.accepted())} transactions accepted")

    def _compare(self, accepted: set[str]) -> None:
        documents = self._documents()
        mirrored = {each["_id"] for each in documents}
        self._check(accepted <= mirrored, f"{len(accepted - mirrored)} accepted transactions are not in the mirror")
        # Of a node that died between the two, it is not known whether it would have accepted.
        self._check(len(mirrored - accepted) <= 1, f"{len(mirrored - accepted)} are in the mirror, and not accepted")
        wrong = differences(documents, self._seed, CHAIN)
        self._check(not wrong, f"the documents of {wrong[:3]} are wrong")
        with self._mongo.client() as client:
            found = client[self._settings.database][self._settings.collection].index_information()
        expected = {tuple(each.document["key"].items()) for each in INDEXES}
        self._check(expected <= {tuple(each["key"]) for each in found.values()}, "indexes are missing")
        self._show.note(f"{len(mirrored)} in the mirror, all fields and raw bytes compared; {len(found) - 1} indexes")

    def _retain(self, accepted: set[str]) -> None:
        """Confirms every second block, once too often and with an unknown hash."""
        hashes = sorted(accepted)
        blocks = [hashes[start : start + BLOCK] for start in range(0, len(hashes), BLOCK)]
        confirmed = {each for block in blocks[::2] for each in block}
        before = self._mirrored()
        producer = Producer({"bootstrap.servers": self._kafka.bootstrap, "log_level": 0})
        for number, block in enumerate([*blocks[::2], blocks[0], ["0xunknown"]]):
            value = {"block_number": number, "tx_hashes": block, "confirmed_at": time.time()}
            producer.produce(CONFIRMATIONS, json.dumps(value).encode())
        if producer.flush(TIMEOUT):
            raise StackError("Kafka does not accept the confirmations")
        wait_until(lambda: not confirmed & self._mirrored(), TIMEOUT, what="confirmed transactions to be deleted")
        left = self._mirrored()
        self._check(left == before - confirmed, "others than the confirmed ones were deleted")
        self._show.note(f"{len(confirmed)} confirmed and deleted after {DELAY_SECONDS} s; {len(left)} stay")

    def _documents(self) -> list[dict[str, Any]]:
        with self._mongo.client() as client:
            return list(client[self._settings.database][self._settings.collection].find())

    def _mirrored(self) -> set[str]:
        with self._mongo.client() as client:
            found = client[self._settings.database][self._settings.collection].find({}, {"_id": 1})
            return {each["_id"] for each in found}

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            self._wrong.append(what)
            self._show.note(what, alarm=True)


def run(seconds: float, seed: int) -> int:
    with ExitStack() as stack:
        show = stack.enter_context(closing(display_for(sys.stdout)))
        kafka = stack.enter_context(KafkaBroker(choice=ServerChoice.LOCAL, progress=show.busy))
        mongo = stack.enter_context(MongoServer(choice=ServerChoice.LOCAL, progress=show.busy))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-mirror-"))
        show.note("Kafka and MongoDB run; a generator submits transactions to the node")
        count = max(150, int(seconds * PER_SECOND))
        mirror_run = MirrorRun(kafka, mongo, Path(folder), show, seed, count)
        with closing(mirror_run.node):
            return mirror_run.run()
