"""The node: a mempool, the mirror of its transactions, and their retention, in one process.

    python -m examples.transaction_mirror.node --data node --chain-id sepolia --kafka localhost:9092 \\
        --external-db-enabled --external-db-mongodb-uri mongodb://localhost:27017/?replicaSet=rs0
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from opentelemetry.metrics import get_meter
from prometheus_client import CollectorRegistry, start_http_server

from examples.transaction_mirror.document import INDEXES, document_of
from examples.transaction_mirror.mempool import Mempool, Refused
from examples.transaction_mirror.metrics import MirrorMetrics
from examples.transaction_mirror.settings import ExternalDbSettings, add_flags, settings_of
from examples.transaction_mirror.transactions import transaction
from tailrace.backoff import Backoff
from tailrace.embedded import Drainer, EmbeddedOutbox, MongoTarget
from tailrace.errors import TailraceError
from tailrace.kafka.client import KafkaOptions
from tailrace.retention.confirmations import ConfirmationFormat
from tailrace.retention.confirmed import ConfirmedRetention, Sweep
from tailrace.retention.mongo_confirmed import MongoConfirmedStore

LOG = logging.getLogger("node")
CONFIRMATIONS = "l1.confirmations"
"""Records such as {"block_number": 7, "tx_hashes": ["0x…"], "confirmed_at": 1795000000}."""
SMALL_BATCH = 100


def mirror(outbox: EmbeddedOutbox, settings: ExternalDbSettings, chain_id: str) -> Drainer:
    target = MongoTarget(
        settings.mongodb_uri,
        settings.database,
        settings.collection,
        partial(document_of, chain_id=chain_id),
        indexes=INDEXES,
        pool_size=settings.pool_size,
        connect_timeout=settings.connect_timeout_ms / 1000,
    )
    return Drainer(
        outbox,
        target,
        batch=settings.batch_size,
        within=settings.flush_interval_ms / 1000,
        backoff=Backoff(settings.retry_backoff_ms / 1000, settings.retry_backoff_max_ms / 1000),
    )


def retain(settings: ExternalDbSettings, kafka: str, metrics: MirrorMetrics, stopping: threading.Event) -> None:
    """Deletes transactions after their confirmation and a delay; never by age."""

    def note(sweep: Sweep) -> None:
        metrics.deleted += sweep.deleted
        if sweep.deleted:
            LOG.info("%d confirmed transactions deleted", sweep.deleted)

    while not stopping.is_set():
        try:
            with closing(MongoConfirmedStore(settings.mongodb_uri, settings.database, settings.collection)) as store:
                retention = ConfirmedRetention(
                    KafkaOptions(kafka, "transaction-mirror"),
                    CONFIRMATIONS,
                    store,
                    form=ConfirmationFormat(id="tx_hashes", time="confirmed_at"),
                    delay=settings.retention_secs,
                    tick=settings.retention_tick_secs,
                    batch_rows=SMALL_BATCH,
                )
                retention.run(stopping.wait, note, lambda error: LOG.warning("retention: %s", error.what))
        except TailraceError as error:  # such as a topic that does not exist yet
            LOG.warning("retention: %s", error.what)
            stopping.wait(settings.retention_tick_secs)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.transaction_mirror.node", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the node")
    parser.add_argument("--chain-id", default="sepolia")
    parser.add_argument("--kafka", default="localhost:9092", help="where confirmations come from")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transactions", type=int, default=1000, help="how many users submit, counted from the first")
    parser.add_argument("--rate", type=float, default=100.0, help="how many per second")
    parser.add_argument("--metrics-port", type=int, default=0, help="0: any free one")
    add_flags(parser)
    given = parser.parse_args()
    settings = settings_of(given, given.chain_id, parser)
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(message)s")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    given.data.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running:
        outbox = EmbeddedOutbox(given.data / "outbox", enabled=settings.enabled, strict=settings.strict_outbox)
        running.callback(outbox.close)
        mempool = Mempool(given.data / "mempool.txt", outbox)
        LOG.info("%d transactions in the mempool, %d in the outbox", len(mempool), outbox.count)
        if settings.enabled:
            drainer = running.enter_context(mirror(outbox, settings, given.chain_id))
            metrics = MirrorMetrics(outbox, drainer)
            metrics.instrument(get_meter("madara.external_db"), drainer)
            registry = CollectorRegistry()
            registry.register(metrics)
            server, _ = start_http_server(given.metrics_port, "127.0.0.1", registry)
            running.callback(server.shutdown)
            (given.data / "metrics.port").write_text(str(server.server_port))
            thread = threading.Thread(target=retain, args=(settings, given.kafka, metrics, stopping), daemon=True)
            thread.start()
            running.callback(thread.join, 10)
        submit(mempool, given.seed, given.transactions, given.rate, stopping)
        LOG.info("submitted")
        stopping.wait()
    return 0


def submit(mempool: Mempool, seed: int, count: int, rate: float, stopping: threading.Event) -> None:
    """Submits transactions as users do, some of them twice. After a start, those that were accepted come again."""
    began, fresh = time.monotonic(), 0
    for number in range(count):
        if stopping.wait(max(0.0, began + fresh / rate - time.monotonic())):
            return
        found = transaction(seed, number)
        for again in range(2 if number % 7 == 0 else 1):
            try:
                mempool.add_tx(found)
                fresh += 1
            except Refused as refusal:
                LOG.debug("%s%s", refusal, " (the second time)" if again else "")


if __name__ == "__main__":
    sys.exit(main())
