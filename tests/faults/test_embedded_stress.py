"""100,000 transactions through an embedded outbox into MongoDB: none is dropped, and memory stays flat."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tailrace.testkit.stack import MongoServer

ROOT = Path(__file__).parents[2]
COUNT, WRITERS = 100_000, 8
STRESS = """
import json, sys, threading, time
from functools import partial
from pathlib import Path

import psutil
from examples.transaction_mirror.document import INDEXES, document_of
from examples.transaction_mirror.transactions import encode, transaction
from tailrace.embedded import Drainer, EmbeddedOutbox, MongoTarget, strict

folder, uri, database, count, writers = sys.argv[1:]
count, writers, process, sizes = int(count), int(writers), psutil.Process(), []
outbox = EmbeddedOutbox(Path(folder) / "outbox")

def submit(first):
    for number in range(first, count, writers):
        found = transaction(1, number)
        with strict(outbox, found.hash, encode(found)):
            pass

def memory():
    return process.memory_info().rss / 1e6

target = MongoTarget(uri, database, "mempool_transactions", partial(document_of, chain_id="stress"), indexes=INDEXES)
before, began = memory(), time.monotonic()
drainer = Drainer(outbox, target)
drainer.start()
threads = [threading.Thread(target=submit, args=(first,)) for first in range(writers)]
for thread in threads:
    thread.start()
longest = 0
while any(thread.is_alive() for thread in threads) or outbox.count:
    longest = max(longest, outbox.count)
    sizes.append(memory())
    time.sleep(0.1)
seconds = time.monotonic() - began
stopped = drainer.stop()
stats = drainer.stats
print(json.dumps({
    "seconds": round(seconds, 1), "per_second": round(count / seconds), "longest_outbox": longest,
    "before_mb": round(before), "quarter_mb": round(max(sizes[: len(sizes) // 4])), "peak_mb": round(max(sizes)),
    "written": stats.written, "duplicates": stats.duplicates, "errors": stats.errors,
    "write_errors": outbox.write_errors, "empty": stopped and outbox.count == 0,
}))
"""


@pytest.mark.slow
def test_a_hundred_thousand_transactions(mongo: MongoServer, tmp_path: Path) -> None:
    database = f"madara_{uuid.uuid4().hex[:8]}"
    done = subprocess.run(
        [sys.executable, "-c", STRESS, str(tmp_path), mongo.uri, database, str(COUNT), str(WRITERS)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=390,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    print(figures)  # noqa: T201 - shown with -rP
    with mongo.client() as client:
        documents = client[database]["mempool_transactions"]
        assert documents.count_documents({}) == COUNT
        client.drop_database(database)
    assert (figures["written"], figures["duplicates"], figures["empty"]) == (COUNT, 0, True)
    assert (figures["errors"], figures["write_errors"]) == (0, 0)
    # RocksDB keeps up to 64 MB in memory, and the driver a few batches: nothing that grows with the outbox.
    assert figures["peak_mb"] < figures["before_mb"] + 300
