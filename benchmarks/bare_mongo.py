"""The least a reader of a change stream can do, run as a process of its own: raw batches, counted and thrown away.

python -m benchmarks.bare_mongo URI DATABASE TOKEN EVENTS
"""

from __future__ import annotations

import json
import sys
import time

from pymongo import MongoClient


def main() -> None:
    uri, database, token, events = sys.argv[1:]
    with MongoClient[dict[str, object]](uri) as client:
        began, seen = time.monotonic(), 0
        inserts = {"$match": {"operationType": "insert"}}
        stream = client[database].outbox.aggregate_raw_batches(
            [{"$changeStream": {"startAfter": json.loads(token)}}, inserts], batchSize=2000
        )
        while seen < int(events):
            seen += _count(next(stream))
        print(time.monotonic() - began)
        stream.close()


def _count(batch: bytes) -> int:
    """How many documents lie in it: each begins with its length."""
    at = count = 0
    while at < len(batch):
        at += int.from_bytes(batch[at : at + 4], "little")
        count += 1
    return count


if __name__ == "__main__":
    main()
