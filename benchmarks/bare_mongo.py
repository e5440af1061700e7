"""A minimal reader of a change stream, run as a separate process: it counts changes and throws them away, and prints
the seconds and the CPU seconds it took.

Arguments: `batches` or `watch`, then URI, database, token, events. `batches` takes raw batches without splitting them;
`watch` is pymongo's change stream with raw documents.
"""

from __future__ import annotations

import json
import sys
import time

from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient


def main() -> None:
    way, uri, database, token, events = sys.argv[1:]
    inserts = {"$match": {"operationType": "insert"}}
    with MongoClient[RawBSONDocument](uri, document_class=RawBSONDocument) as client:
        began, cpu, seen = time.monotonic(), time.process_time(), 0
        outbox = client[database].outbox
        if way == "watch":
            with outbox.watch([inserts], start_after=json.loads(token)) as stream:
                while seen < int(events):
                    next(stream)
                    seen += 1
        else:
            start = {"$changeStream": {"startAfter": json.loads(token)}}
            with outbox.aggregate_raw_batches([start, inserts], batchSize=2000) as batches:
                while seen < int(events):
                    seen += _count(next(batches))  # type: ignore[arg-type]  # bytes, although pymongo declares documents
        print(time.monotonic() - began, time.process_time() - cpu)


def _count(batch: bytes) -> int:
    """Counts the documents of a batch: each begins with its length."""
    at = count = 0
    while at < len(batch):
        at += int.from_bytes(batch[at : at + 4], "little")
        count += 1
    return count


if __name__ == "__main__":
    main()
